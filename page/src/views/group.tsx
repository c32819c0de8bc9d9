// Shows the board of a group: attempts are columns, joint steps rows, the arithmetic stands below.
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import type { ViewProps } from "../app";
import type { Arithmetic, BoardRow, Cell, Group } from "../api";
import { classifySigned } from "../colours";
import { useAnswer, writeRequest } from "../fetching";
import { showNumber, showSigned } from "../format";
import { useKeys } from "../keys";
import { Badge, Choice, Empty, Section, Signed, Waiting } from "../parts/basics";
import { TaskTexts } from "../parts/task_texts";
import { Block, Text } from "../parts/text";
import { setQuery, writeHref } from "../router";

export function GroupView({ query, run }: ViewProps): JSX.Element {
  const { data, error } = useAnswer(
    "Group",
    writeRequest("group", {
      run,
      step: query.get("step"),
      task: query.get("task"),
      source: query.get("source"),
    }),
  );
  if (!data) return <Waiting error={error} what="the group" />;
  return <Board group={data} query={query} />;
}

function Board({ group, query }: { group: Group; query: URLSearchParams }): JSX.Element {
  const { run, step } = group;
  const chosen = Number(query.get("attempt") ?? 0);
  const isBrief = query.get("texts") !== "all";
  const go = (to: number): void => {
    if (group.columns[to]) setQuery({ attempt: to || null });
  };
  useEffect(() => {
    document.querySelector(`[data-column="${chosen}"]`)?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [chosen]);
  useKeys([
    { key: "h", says: "attempt before", run: () => go(chosen - 1) },
    { key: "l", says: "attempt after", run: () => go(chosen + 1) },
  ]);
  return (
    <>
      <div class="heading">
        <h1><Text>{group.task}</Text></h1>
        <Badge kind={group.sign.replace(" ", "-")}>{group.sign}</Badge>
        <a href={writeHref("step", { run, step })}>step {step}</a>
        <a href={writeHref("task", { run, task: group.task, source: group.source })}>
          this task through training
        </a>
      </div>
      {group.why ? <p class={group.sign === "signal" ? "" : "flag"}><Text>{group.why}</Text></p> : null}
      <TaskTexts question={group.question} reference={group.reference} />
      <section aria-label="Attempts">
        <h2>
          Attempts
          <Choice
            label="texts"
            value={isBrief ? "differ" : "all"}
            options={[["differ", "what differs"], ["all", "all texts"]]}
            onChoose={(value) => setQuery({ texts: value === "all" ? "all" : null })}
          />
          <span class="note">columns are attempts, rows joint steps</span>
        </h2>
        <div class="board" tabIndex={0} role="region" aria-label="Board of attempts">
          <table>
            <thead>
              <tr>
                <th scope="col">step</th>
                {group.columns.map((column, index) => (
                  <th scope="col" class={index === chosen ? "chosen" : ""} data-column={index}>
                    <a href={writeHref("talk", { run, step, episode: column.episode })}>
                      attempt {column.attempt}
                    </a>
                    <span class="number">{showNumber(column.score, 2)}</span>
                    {column.error ? <div class="problem"><Text>{column.error}</Text></div> : null}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {group.rows.map((row) => (
                <BoardLine group={group} row={row} chosen={chosen} isBrief={isBrief} />
              ))}
            </tbody>
          </table>
        </div>
        {group.rows.length ? null : <Empty>No attempt has a turn.</Empty>}
      </section>
      <Section title="Arithmetic" note="what the turns were compared with">
        {group.arithmetic.map((each) => <Sum group={group} arithmetic={each} />)}
        {group.arithmetic.length ? null : <Empty>No credit is recorded for this group.</Empty>}
      </Section>
    </>
  );
}

function BoardLine(props: {
  group: Group;
  row: BoardRow;
  chosen: number;
  isBrief: boolean;
}): JSX.Element {
  const { group, row } = props;
  const agent = row.cells.find((cell) => cell)?.agent ?? "";
  return (
    <tr class={row.is_parting ? "parting" : ""}>
      <th scope="row">
        <Text>{row.path}</Text>
        <div class="quiet"><Text>{agent}</Text></div>
        {row.is_parting ? <Badge kind="parts">they part here</Badge> : null}
      </th>
      {row.cells.map((cell, index) => (
        <td class={index === props.chosen ? "chosen" : ""}>
          {cell ? (
            <BoardCell
              cell={cell}
              isBrief={props.isBrief}
              href={writeHref("talk", {
                run: group.run,
                step: group.step,
                episode: group.columns[index]?.episode,
                turn: cell.turn,
              })}
            />
          ) : (
            <span class="quiet">no turn</span>
          )}
        </td>
      ))}
    </tr>
  );
}

export function BoardCell(props: { cell: Cell; href: string; isBrief: boolean }): JSX.Element {
  const { cell } = props;
  const name = `${cell.agent}, ${cell.turn.split("/").pop()}, advantage ${showSigned(cell.advantage)}`;
  return (
    <div class={`cell edge-${classifySigned(cell.advantage, 2).slice(0, 1) || "none"}`}>
      <div class="cell-head">
        <a href={props.href} aria-label={name}><Signed value={cell.advantage} /></a>
        <Flags {...cell} />
      </div>
      {props.isBrief && !cell.is_new ? (
        <span class="quiet">as in an attempt before</span>
      ) : (
        <Block text={cell.text} />
      )}
    </div>
  );
}

export function Flags(props: {
  valid: boolean;
  finish: string;
  trained: boolean;
  chosen: boolean;
}): JSX.Element {
  return (
    <>
      {props.valid ? null : <Badge kind="failed">invalid</Badge>}
      {props.finish === "length" ? <Badge kind="warning">cut off</Badge> : null}
      {props.trained ? null : <Badge kind="">not trained</Badge>}
      {props.chosen ? null : <Badge kind="">not chosen</Badge>}
    </>
  );
}

function Sum({ group, arithmetic }: { group: Group; arithmetic: Arithmetic }): JSX.Element {
  return (
    <div class="sum">
      <h3><Text>{arithmetic.agent}</Text></h3>
      {arithmetic.sentences.map((sentence) => <p><Text>{sentence}</Text></p>)}
      <ul class="samples" aria-label={`samples of ${arithmetic.agent}`}>
        {arithmetic.samples.map(([turn, score]) => (
          <li>
            <a href={writeHref("talk", { run: group.run, step: group.step, episode: cutTurn(turn), turn })}>
              <Text>{shortenTurn(turn)}</Text> <span class="number">{showNumber(score, 2)}</span>
            </a>
          </li>
        ))}
      </ul>
    </div>
  );
}

/** The episode of a turn such as "3:add-1:0/2". */
export function cutTurn(turn: string): string {
  const end = turn.lastIndexOf("/");
  return end < 0 ? turn : turn.slice(0, end);
}

function shortenTurn(turn: string): string {
  return turn.slice(turn.lastIndexOf(":") + 1);
}
