// Shows one step of training: its groups by signal, reasons with examples, norms and advice.
import type { JSX } from "preact";
import type { ViewProps } from "../app";
import type { GroupRow, Reason, Step } from "../api";
import { useAnswer, writeRequest } from "../fetching";
import { count, showNumber, showShare, showSigned } from "../format";
import { AdviceList, Badge, Choice, Empty, Facts, FilterBox, Links, MissingList, Section, Waiting } from "../parts/basics";
import { Norms } from "../parts/norms";
import { StepPicker } from "../parts/steps";
import { Table, type Column } from "../parts/table";
import { Text } from "../parts/text";
import { setQuery, writeHref } from "../router";

const SIGNS = ["signal", "no signal", "failed", "filtered", "stale"] as const;

export function StepView({ query, run }: ViewProps): JSX.Element {
  const request = writeRequest("step", { run, step: query.get("step") });
  const { data, error } = useAnswer("Step", request);
  if (!data) return <Waiting error={error} what="the step" />;
  return (
    <>
      <div class="heading">
        <h1>Step {data.step}</h1>
        <StepPicker step={data.step} steps={data.steps} />
        <a href={writeHref("spikes", { run, step: data.step })}>where its gradient came from</a>
      </div>
      <StepFacts step={data} />
      <MissingList missing={data.missing} />
      {data.advice.length ? (
        <Section title="Advice"><AdviceList advice={data.advice} /></Section>
      ) : null}
      <Groups step={data} query={query} />
      {data.reasons.length ? (
        <Section title="Reasons" note="why turns or episodes are not as they should be">
          <ReasonTable reasons={data.reasons} />
        </Section>
      ) : null}
      <Section title="Gradient norms" note="by optimizer step and agent; a row opens what it came from">
        {data.norms.length ? (
          <Norms
            norms={data.norms}
            href={(norm) =>
              writeHref("spikes", {
                run,
                step: data.step,
                policy: norm.policy,
                optimizer: norm.optimizer_step,
              })
            }
          />
        ) : (
          <Empty>No gradient norms are recorded for this step.</Empty>
        )}
      </Section>
      <details>
        <summary>All {Object.keys(data.metrics).length} measures of this step</summary>
        <Table
          label="Measures of this step"
          rows={Object.entries(data.metrics)}
          columns={[
            { name: "measure", width: "24em", show: ([name]) => <Text>{name}</Text> },
            { name: "value", width: "10em", isNumber: true, show: ([, value]) => showNumber(value, 5) },
          ]}
        />
      </details>
    </>
  );
}

function StepFacts({ step }: { step: Step }): JSX.Element {
  const { metrics } = step;
  const signal = step.groups.filter((group) => group.sign === "signal").length;
  return (
    <Facts
      facts={[
        ["score", showNumber(metrics.score)],
        ["groups with signal", `${signal} of ${step.groups.length}`],
        ["episodes", showNumber(metrics["rollout/episodes"])],
        ["seconds", showNumber(metrics["time/step_s"])],
      ]}
    />
  );
}

function Groups({ step, query }: { step: Step; query: URLSearchParams }): JSX.Element {
  const sign = query.get("sign") ?? "";
  const filter = query.get("filter") ?? "";
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = step.groups.filter((group) => {
    if (sign && group.sign !== sign) return false;
    const text = `${group.task} ${group.source} ${group.family} ${group.question}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  const counts = SIGNS.map((each) => [each, step.groups.filter((g) => g.sign === each).length] as const);
  return (
    <section aria-label="Groups">
      <h2>
        Groups
        <Choice
          label="groups by signal"
          value={sign}
          options={[
            ["", `all ${step.groups.length}`],
            ...counts
              .filter(([, number]) => number)
              .map(([each, number]) => [each, `${each} ${number}`] as [string, string]),
          ]}
          onChoose={(value) => setQuery({ sign: value }, "push")}
        />
        <FilterBox
          label="filter groups"
          hint="task, source, words"
          value={filter}
          onInput={(value) => setQuery({ filter: value })}
        />
        <span class="note" role="status">{rows.length} of {count(step.groups.length, "group")}</span>
      </h2>
      <Table
        label="Groups"
        columns={listColumns(step)}
        rows={rows}
        href={(row) =>
          writeHref("group", { run: step.run, step: step.step, task: row.task, source: row.source })
        }
        sort={query.get("sort") ?? ""}
        onSort={(sort) => setQuery({ sort }, "push")}
        tall
      />
    </section>
  );
}

function listColumns(step: Step): Column<GroupRow>[] {
  const agents = [...new Set(step.groups.flatMap((group) => Object.keys(group.advantages)))];
  return [
    { name: "task", width: "12em", show: (row) => <Text>{row.task}</Text>, sortBy: (row) => row.task },
    {
      name: "sign",
      title: "signal",
      width: "6.5em",
      show: (row) => <Badge kind={row.sign.replace(" ", "-")}>{row.sign}</Badge>,
      sortBy: (row) => SIGNS.indexOf(row.sign),
    },
    { name: "source", width: "8em", show: (row) => <Text>{row.source}</Text>, sortBy: (row) => row.source },
    {
      name: "score",
      title: "mean score",
      width: "7em",
      isNumber: true,
      show: (row) => showNumber(mean(row.scores)),
      sortBy: (row) => mean(row.scores),
    },
    { name: "scores", title: "by attempt", width: "9em", show: (row) => <Scores scores={row.scores} /> },
    ...agents.map((agent) => ({
      name: agent,
      title: `${agent}, advantage`,
      width: "11em",
      isNumber: true,
      show: (row: GroupRow) => {
        const span = row.advantages[agent];
        return span ? `${showSigned(span[0])} to ${showSigned(span[1])}` : "–";
      },
      sortBy: (row: GroupRow) => {
        const span = row.advantages[agent];
        return span ? span[1] - span[0] : null;
      },
    })),
    { name: "question", width: "22em", show: (row) => <Text>{row.question}</Text> },
  ];
}

/** Draws a bar for each attempt; one that failed has a cross. */
function Scores({ scores }: { scores: (number | null)[] }): JSX.Element {
  const largest = Math.max(1, ...scores.map((score) => Math.abs(score ?? 0)));
  const says = `scores ${scores.map((score) => showNumber(score, 2)).join(", ")}`;
  return (
    <svg class="scores" width={Math.min(130, scores.length * 8)} height="18" role="img" aria-label={says}>
      {scores.map((score, index) => {
        if (score === null) return <text x={index * 8} y="14">×</text>;
        const height = Math.max(2, (16 * Math.abs(score)) / largest);
        return (
          <rect
            class={score > 0 ? "plus" : score < 0 ? "minus" : "zero"}
            x={index * 8}
            y={17 - height}
            width="6"
            height={height}
          />
        );
      })}
    </svg>
  );
}

function ReasonTable({ reasons }: { reasons: Reason[] }): JSX.Element {
  return (
    <ul class="reasons">
      {reasons.map((reason) => (
        <li>
          <b><Text>{reason.name}</Text></b>
          <span class="number">
            {reason.count} of {reason.of} ({showShare(reason.of ? reason.count / reason.of : null)})
          </span>
          <span><Text>{reason.text}</Text></span>
          <Links links={reason.links} />
        </li>
      ))}
    </ul>
  );
}

export function mean(values: (number | null)[]): number | null {
  const known = values.filter((value): value is number => value !== null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}
