// Starts a process that computes with a run's weights, and shows what becomes of it.
import type { ComponentChildren, JSX } from "preact";
import { useCallback, useEffect, useState } from "preact/hooks";
import type { Job, Session } from "../api";
import { fetchJson, postJson, useInterval, writeRequest } from "../fetching";
import { showSeconds } from "../format";
import { Copy } from "./basics";
import { Text } from "./text";

export interface JobBody {
  kind: "whatif" | "blame" | "spikes";
  run: string;
  step: number | string | null;
  turn?: string;
  episode?: string;
  say?: string | null;
  draws?: number;
  checkpoint?: string | null;
}

/** Returns where a run lies, for a command in a terminal. */
export function writePath(session: Session | null, run: string): string {
  const [folder, ...others] = session?.folders ?? [];
  if (!folder || others.length) return run;
  return folder.split("/").pop() === run ? folder : `${folder}/${run}`;
}

/** Shows a button where the server starts jobs, and otherwise the command for a terminal. */
export function StartJob(props: {
  session: Session | null;
  body: JobBody;
  command: string;
  says: string;
  onDone?: (job: Job) => void;
  children?: (job: Job) => ComponentChildren;
}): JSX.Element {
  const [job, setJob] = useState<Job | null>(null);
  const [error, setError] = useState("");
  const { onDone } = props;
  const isRunning = job?.status === "running";
  const name = job?.job;
  const fail = (problem: Error): void => setError(problem.message);
  const look = useCallback(() => {
    if (!isRunning || !name) return;
    fetchJson<Job>(writeRequest("jobs", { job: name })).then(setJob, fail);
  }, [isRunning, name]);
  useInterval(look, 1000);
  useEffect(() => {
    if (job?.status === "done") onDone?.(job);
  }, [job?.status]);
  const start = (): void => {
    setError("");
    postJson<Job>("api/jobs", props.body).then(setJob, fail);
  };
  if (!props.session?.allows_jobs) {
    return (
      <span class="command">
        <code><Text>{props.command}</Text></code> <Copy text={props.command} what="command" />
      </span>
    );
  }
  return (
    <span class="job">
      <button type="button" class="button" disabled={isRunning} onClick={start}>{props.says}</button>
      {isRunning ? (
        <button
          type="button"
          class="small"
          onClick={() =>
            void postJson<Job>(writeRequest("cancel", { job: name! }), {}).then(setJob, fail)
          }
        >
          stop
        </button>
      ) : null}
      <span role="status">{job ? ` ${job.status}, ${showSeconds(job.seconds)}` : ""}</span>
      {error || job?.error ? (
        <span class="error" role="alert"><Text>{error || job!.error}</Text></span>
      ) : null}
      {job?.status === "done" && props.children ? props.children(job) : null}
    </span>
  );
}
