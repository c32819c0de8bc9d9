// Shows the gradient norms of a step by optimizer step and agent, against a median where there is one.
import type { JSX } from "preact";
import type { Norm } from "../api";
import { showNumber, type Value } from "../format";
import { Table, type Column } from "./table";
import { Text } from "./text";

export function Norms(props: {
  norms: Norm[];
  median?: Record<string, Value>;
  href?: (norm: Norm) => string;
}): JSX.Element {
  const { norms, median } = props;
  const agents = [...new Set(norms.flatMap((norm) => Object.keys(norm.agents)))];
  const columns: Column<Norm>[] = [
    {
      name: "optimizer step",
      width: "8.5em",
      show: (norm) => (norm.optimizer_step ? String(norm.optimizer_step) : "all together"),
    },
    { name: "policy", width: "9em", show: (norm) => <Text>{norm.policy}</Text> },
    { name: "norm", width: "7em", isNumber: true, show: (norm) => showNumber(norm.grad_norm, 4) },
    ...(median
      ? [
          {
            name: "median",
            title: "× median",
            width: "10em",
            isNumber: true,
            show: (norm: Norm) => <Times norm={norm.grad_norm} median={median[norm.policy]} />,
          },
        ]
      : []),
    ...agents.map((agent) => ({
      name: `agent ${agent}`,
      title: agent,
      width: "8em",
      isNumber: true,
      show: (norm: Norm) => showNumber(norm.agents[agent], 4),
    })),
    { name: "tokens", width: "6em", isNumber: true, show: (norm) => showNumber(norm.tokens) },
    { name: "kl", title: "KL", width: "6em", isNumber: true, show: (norm) => showNumber(norm.kl, 5) },
    { name: "lr", width: "6em", isNumber: true, show: (norm) => showNumber(norm.lr, 6) },
    {
      name: "skipped",
      width: "12em",
      show: (norm) => (norm.skipped ? <span class="problem"><Text>{norm.skipped}</Text></span> : "no"),
    },
  ];
  return props.href ? (
    <Table label="Gradient norms" rows={norms} columns={columns} href={props.href} />
  ) : (
    <Table label="Gradient norms" rows={norms} columns={columns} />
  );
}

function Times({ norm, median }: { norm: Value; median: Value }): JSX.Element {
  if (!norm || !median) return <>–</>;
  const times = norm / median;
  return (
    <span class={times >= 3 ? "problem" : ""}>
      {times >= 3 ? "▲ " : ""}
      {showNumber(times, 1)} × {showNumber(median)}
    </span>
  );
}
