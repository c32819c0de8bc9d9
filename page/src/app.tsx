// Frames the views: the bar with the run's pages, the help on keys, and the view of the address.
import type { ComponentType, JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { Session } from "./api";
import { useAnswer, writeRequest } from "./fetching";
import { useKeys } from "./keys";
import { copyText } from "./parts/basics";
import { Help } from "./parts/help";
import { Text } from "./parts/text";
import { navigate, useRoute, writeHref } from "./router";
import { CoachView } from "./views/coach";
import { CompareView } from "./views/compare";
import { FindView } from "./views/find";
import { GroupView } from "./views/group";
import { MatrixView } from "./views/matrix";
import { PromptsView } from "./views/prompts";
import { RolesView } from "./views/roles";
import { RunView } from "./views/run";
import { RunsView } from "./views/runs";
import { SpikesView } from "./views/spikes";
import { StepView } from "./views/step";
import { TalkView } from "./views/talk";
import { TaskView } from "./views/task";
import { ToolsView } from "./views/tools";
import { WhatifView } from "./views/whatif";

export interface ViewProps {
  query: URLSearchParams;
  run: string;
  session: Session | null;
}

const VIEWS: Record<string, { title: string; view: ComponentType<ViewProps> }> = {
  "": { title: "Runs", view: RunsView },
  run: { title: "Run", view: RunView },
  step: { title: "Step", view: StepView },
  group: { title: "Group", view: GroupView },
  talk: { title: "Conversation", view: TalkView },
  spikes: { title: "Spikes", view: SpikesView },
  find: { title: "Find", view: FindView },
  task: { title: "Task", view: TaskView },
  compare: { title: "Compare", view: CompareView },
  matrix: { title: "Cross-play", view: MatrixView },
  coach: { title: "Coach", view: CoachView },
  tools: { title: "Tools", view: ToolsView },
  prompts: { title: "Prompts", view: PromptsView },
  roles: { title: "Roles", view: RolesView },
  whatif: { title: "What if", view: WhatifView },
};

// Pages of a run that stand in the bar; those with a step stay at the step that is looked at.
const BAR = ["run", "step", "find", "spikes", "prompts", "tools", "coach", "roles", "matrix", "whatif"];
const OF_A_STEP = new Set(["step", "spikes", "tools", "coach", "roles"]);

export function App(): JSX.Element {
  const { view: name, query } = useRoute();
  const [isHelpOpen, setHelp] = useState(false);
  const [note, setNote] = useState("");
  const { data: session } = useAnswer("Session", writeRequest("session", {}));
  const run = query.get("run") ?? "";
  const entry = VIEWS[name];
  useEffect(() => {
    document.title = [entry?.title, run, "rolecall watch"].filter(Boolean).join(" · ");
  }, [entry, run]);
  useKeys([
    { key: "?", says: "show or hide this help", run: () => setHelp(!isHelpOpen) },
    { key: "/", says: "find turns, or filter a list", run: () => openFind(run) },
    {
      key: "y",
      says: "copy the link of what is shown",
      run: () =>
        void copyText(location.href).then((isDone) => {
          setNote(isDone ? "The link is copied." : "The browser does not allow to copy.");
          setTimeout(() => setNote(""), 1500);
        }),
    },
  ]);
  const View = entry?.view;
  return (
    <>
      <a class="skip" href="#main" onClick={() => document.getElementById("main")?.focus()}>
        To the content
      </a>
      <Bar name={name} query={query} run={run} onHelp={() => setHelp(true)} />
      <main id="main" tabIndex={-1}>
        {View ? (
          <View key={name} query={query} run={run} session={session} />
        ) : (
          <>
            <h1>There is no such page</h1>
            <p class="error" role="alert"><Text>{name}</Text> is no page of rolecall watch.</p>
            <p><a href="./">All runs</a></p>
          </>
        )}
      </main>
      <div class="toast" role="status">{note}</div>
      {isHelpOpen ? <Help onClose={() => setHelp(false)} /> : null}
    </>
  );
}

function Bar(props: {
  name: string;
  query: URLSearchParams;
  run: string;
  onHelp: () => void;
}): JSX.Element {
  const { name, query, run } = props;
  const step = query.get("step");
  return (
    <header>
      <nav aria-label="Pages">
        <a class="home" href="./" aria-current={name === "" ? "page" : undefined}>
          rolecall
        </a>
        {run ? (
          <>
            <span class="run-name" title={run}><Text>{run}</Text></span>
            {BAR.map((view) => (
              <a
                href={writeHref(view, { run, step: OF_A_STEP.has(view) ? step : null })}
                aria-current={view === name ? "page" : undefined}
              >
                {VIEWS[view]!.title}
              </a>
            ))}
          </>
        ) : null}
      </nav>
      <button type="button" class="small" aria-label="help on keys" onClick={props.onHelp}>
        ?
      </button>
    </header>
  );
}

function openFind(run: string): void {
  const box = document.querySelector<HTMLInputElement>("main input[type=search]");
  if (box) {
    box.focus();
    box.select();
  } else if (run) navigate(writeHref("find", { run }));
}
