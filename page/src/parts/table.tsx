// Shows a long list as a table that renders only the rows in sight; all rows have one height.
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { showCount } from "../format";

export interface Column<T> {
  name: string;
  title?: string;
  width?: string; // of CSS, such as "8em"; columns without one share the rest
  isNumber?: boolean;
  show: (row: T, index: number) => ComponentChildren;
  sortBy?: (row: T) => number | string | null;
}

const ROW = 30; // pixels, as in the style sheet
const AROUND = 8; // rows rendered above and below those in sight
const MOST = 400_000; // rows: browsers lay out no element much taller than this

export function Table<T>(props: {
  label: string;
  columns: Column<T>[];
  rows: T[];
  href?: (row: T) => string;
  sort?: string; // "name", or "-name" for the largest first
  onSort?: (sort: string) => void;
  tall?: boolean;
  rowClass?: (row: T) => string;
}): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const [[first, height], setSight] = useState<[number, number]>([0, 480]);
  const rows = sortRows(props.rows, props.columns, props.sort ?? "").slice(0, MOST);
  useEffect(() => {
    const element = box.current!;
    const measure = (): void => {
      const next = Math.floor(element.scrollTop / ROW);
      setSight((before) =>
        before[0] === next && before[1] === element.clientHeight
          ? before
          : [next, element.clientHeight],
      );
    };
    measure();
    element.addEventListener("scroll", measure, { passive: true });
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => {
      element.removeEventListener("scroll", measure);
      observer.disconnect();
    };
  }, []);
  const start = Math.max(0, Math.min(first, rows.length) - AROUND);
  const end = Math.min(rows.length, first + Math.ceil(height / ROW) + AROUND);
  return (
    <>
      <div
        class={`table ${props.tall ? "tall" : ""}`}
        ref={box}
        tabIndex={0}
        role="region"
        aria-label={`${props.label} (table)`}
        onKeyDown={(event) => moveFocus(event, box.current!)}
      >
        <table aria-label={props.label} aria-rowcount={rows.length + 1}>
          <colgroup>
            {props.columns.map((column) => (
              <col key={column.name} style={column.width ? { width: column.width } : {}} />
            ))}
          </colgroup>
          <thead>
            <tr>
              {props.columns.map((column) => (
                <Heading column={column} sort={props.sort ?? ""} onSort={props.onSort} />
              ))}
            </tr>
          </thead>
          <tbody>
            <Space rows={start} span={props.columns.length} />
            {rows.slice(start, end).map((row, offset) => (
              <tr
                key={start + offset}
                aria-rowindex={start + offset + 2}
                class={props.rowClass?.(row)}
                onClick={(event) => openRow(event)}
              >
                {props.columns.map((column, place) => (
                  <td class={column.isNumber ? "number" : ""}>
                    {place === 0 && props.href ? (
                      <a href={props.href(row)} class="row-link">
                        {column.show(row, start + offset)}
                      </a>
                    ) : (
                      column.show(row, start + offset)
                    )}
                  </td>
                ))}
              </tr>
            ))}
            <Space rows={rows.length - end} span={props.columns.length} />
          </tbody>
        </table>
      </div>
      {props.rows.length > MOST ? (
        <p class="quiet">
          {showCount(MOST)} of {showCount(props.rows.length)} rows are shown.
        </p>
      ) : null}
    </>
  );
}

function Space({ rows, span }: { rows: number; span: number }): JSX.Element | null {
  if (rows <= 0) return null;
  return (
    <tr class="space" aria-hidden="true">
      <td colSpan={span} style={{ height: `${rows * ROW}px` }} />
    </tr>
  );
}

function Heading<T>(props: {
  column: Column<T>;
  sort: string;
  onSort?: ((sort: string) => void) | undefined;
}): JSX.Element {
  const { column, sort, onSort } = props;
  const direction = sort === column.name ? 1 : sort === `-${column.name}` ? -1 : 0;
  const says = column.title ?? column.name;
  const ariaSort = direction > 0 ? "ascending" : direction < 0 ? "descending" : undefined;
  if (!onSort || !column.sortBy) {
    return <th scope="col" class={column.isNumber ? "number" : ""}>{says}</th>;
  }
  const next = direction === 0 ? `-${column.name}` : direction < 0 ? column.name : "";
  return (
    <th scope="col" class={column.isNumber ? "number" : ""} aria-sort={ariaSort}>
      <button type="button" onClick={() => onSort(next)}>
        {says}
        <span aria-hidden="true">{direction > 0 ? " ▲" : direction < 0 ? " ▼" : ""}</span>
      </button>
    </th>
  );
}

export function sortRows<T>(rows: T[], columns: Column<T>[], sort: string): T[] {
  const name = sort.replace(/^-/, "");
  const sortBy = columns.find((column) => column.name === name)?.sortBy;
  if (!sort || !sortBy) return rows;
  const sign = sort.startsWith("-") ? -1 : 1;
  return [...rows].sort((one, other) => {
    const [a, b] = [sortBy(one), sortBy(other)];
    if (a === null || b === null) return Number(a === null) - Number(b === null);
    return sign * (a < b ? -1 : a > b ? 1 : 0);
  });
}

/** Opens a row's link for a click beside it, unless text is being selected. */
function openRow(event: MouseEvent & { currentTarget: Element }): void {
  if ((event.target as Element).closest("a, button, input, label")) return;
  if (window.getSelection()?.toString()) return;
  event.currentTarget.querySelector<HTMLAnchorElement>("a.row-link")?.click();
}

/** Moves from row to row with the arrows. */
function moveFocus(event: KeyboardEvent, box: HTMLElement): void {
  if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
  const links = [...box.querySelectorAll<HTMLElement>("a.row-link")];
  if (!links.length) return;
  const row = document.activeElement?.closest("tr");
  const now = links.findIndex((link) => row?.contains(link));
  const next = links[now < 0 ? 0 : now + (event.key === "ArrowDown" ? 1 : -1)];
  if (!next) return;
  event.preventDefault();
  next.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
}
