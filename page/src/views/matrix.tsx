// Shows roles of one step played with roles of another, as a matrix.
import type { JSX } from "preact";
import type { ViewProps } from "../app";
import { classifySigned } from "../colours";
import { useAnswer, writeRequest } from "../fetching";
import { showNumber } from "../format";
import { Choice, Copy, Empty, MissingList, Waiting } from "../parts/basics";
import { writePath } from "../parts/job";
import { Text } from "../parts/text";
import { setQuery } from "../router";
import { showPlain } from "../visible";

export function MatrixView({ query, run, session }: ViewProps): JSX.Element {
  const { data, error } = useAnswer("Matrix", writeRequest("matrix", { run, name: query.get("name") }));
  if (!data) return <Waiting error={error} what="the cross-play" />;
  const values = data.values.flat().filter((value): value is number => value !== null);
  const middle = values.reduce((sum, value) => sum + value, 0) / (values.length || 1);
  const largest = Math.max(1e-9, ...values.map((value) => Math.abs(value - middle)));
  const path = writePath(session, run);
  const command = `rolecall crossplay ${path} OTHER_RUN`;
  return (
    <>
      <div class="heading">
        <h1>Cross-play</h1>
        {data.names.length > 1 ? (
          <Choice
            label="whose run is that of the row"
            value={data.name}
            options={data.names.map((name) => [name, showPlain(name)])}
            onChoose={(name) => setQuery({ name }, "push")}
          />
        ) : (
          <span class="note"><Text>{data.name}</Text></span>
        )}
      </div>
      {data.note ? <p class="quiet"><Text>{data.note}</Text></p> : null}
      <MissingList missing={data.missing} />
      {data.rows.length ? (
        <div class="board" tabIndex={0} role="region" aria-label="Matrix of cross-play">
          <table class="plain matrix">
            <thead>
              <tr>
                <td />
                {data.columns.map((name) => <th scope="col"><Text>{name}</Text></th>)}
              </tr>
            </thead>
            <tbody>
              {data.rows.map((name, row) => (
                <tr>
                  <th scope="row"><Text>{name}</Text></th>
                  {data.columns.map((_, column) => {
                    const value = data.values[row]?.[column] ?? null;
                    const kind = value === null ? "" : classifySigned(value - middle, largest);
                    return (
                      <td class="number">
                        <span class={`signed ${kind}`}>{showNumber(value)}</span>{" "}
                        <span class="quiet">± {showNumber(data.margins[row]?.[column])}</span>
                      </td>
                    );
                  })}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : (
        <Empty>
          Agents of two runs are played together by <code><Text>{command}</Text></code>{" "}
          <Copy text={command} what="command" />
        </Empty>
      )}
    </>
  );
}
