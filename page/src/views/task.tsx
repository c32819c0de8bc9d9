// Shows one task through the training: attempts of some steps beside one another, with a diff.
import type { JSX } from "preact";
import type { ViewProps } from "../app";
import type { Cell, TaskAttempts, TaskHistory } from "../api";
import { useAnswer, writeRequest } from "../fetching";
import { showNumber } from "../format";
import { Choice, Empty, Signed, Waiting } from "../parts/basics";
import { TaskTexts } from "../parts/task_texts";
import { Block, Text, WordDiff } from "../parts/text";
import { setQuery, writeHref } from "../router";
import { Flags } from "./group";

export function TaskView({ query, run }: ViewProps): JSX.Element {
  const request = writeRequest("task", {
    run,
    task: query.get("task"),
    source: query.get("source"),
    steps: query.get("steps"),
  });
  const { data, error } = useAnswer("TaskHistory", request);
  if (!data) return <Waiting error={error} what="the task" />;
  const isDiff = query.get("texts") === "diff";
  const shown = data.steps.map((each) => each.step);
  return (
    <>
      <div class="heading"><h1><Text>{data.task}</Text></h1></div>
      <TaskTexts question={data.question} reference={data.reference} />
      <section aria-label="Attempts">
        <h2>
          Attempts
          <Choice
            label="texts"
            value={isDiff ? "diff" : "plain"}
            options={[["plain", "as they are"], ["diff", "what changed"]]}
            onChoose={(value) => setQuery({ texts: value === "diff" ? "diff" : null })}
          />
          <span class="note">{shown.length} of {data.all_steps.length} steps in which it was played</span>
        </h2>
        <StepChoice history={data} shown={shown} />
        <div class="columns" tabIndex={0} role="region" aria-label="Attempts by step">
          {data.steps.map((each, place) => (
            <Column
              key={each.step}
              history={data}
              attempts={each}
              before={isDiff ? data.steps[place - 1] : undefined}
            />
          ))}
        </div>
        {data.steps.length ? null : <Empty>No step with this task is on disk.</Empty>}
      </section>
    </>
  );
}

function StepChoice({ history, shown }: { history: TaskHistory; shown: number[] }): JSX.Element {
  return (
    <p class="choices" role="group" aria-label="steps to show">
      {history.all_steps.map((step) => {
        const isShown = shown.includes(step);
        const next = isShown ? shown.filter((each) => each !== step) : [...shown, step].sort((a, b) => a - b);
        return (
          <button
            type="button"
            class="small"
            aria-pressed={isShown}
            disabled={isShown && shown.length === 1}
            onClick={() => setQuery({ steps: next.join(",") })}
          >
            {step}
          </button>
        );
      })}
    </p>
  );
}

function Column(props: {
  history: TaskHistory;
  attempts: TaskAttempts;
  before: TaskAttempts | undefined;
}): JSX.Element {
  const { history, attempts, before } = props;
  return (
    <section aria-label={`step ${attempts.step}`}>
      <h3>
        <a href={writeHref("group", { run: history.run, step: attempts.step, task: history.task, source: history.source })}>
          step {attempts.step}
        </a>{" "}
        <span class="quiet">mean score {showNumber(attempts.mean)}</span>
      </h3>
      {attempts.attempts.map((attempt, place) => (
        <details open={place === 0}>
          <summary>
            attempt {attempt.attempt}, score {showNumber(attempt.score)}
          </summary>
          {(attempts.turns[place] ?? []).map((cell, row) => (
            <Said
              cell={cell}
              before={before?.turns[place]?.[row]}
              href={writeHref("talk", {
                run: history.run,
                step: attempts.step,
                episode: attempt.episode,
                turn: cell.turn,
              })}
            />
          ))}
        </details>
      ))}
    </section>
  );
}

function Said(props: { cell: Cell; before: Cell | undefined; href: string }): JSX.Element {
  const { cell, before } = props;
  return (
    <div class="cell">
      <div class="cell-head">
        <a href={props.href}><Text>{cell.agent}</Text></a> <Signed value={cell.advantage} />
        <Flags {...cell} />
      </div>
      {before ? <WordDiff before={before.text} after={cell.text} /> : <Block text={cell.text} />}
    </div>
  );
}
