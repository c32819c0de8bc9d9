// Steps from one training step to the next, by buttons and by the keys [ and ].
import type { JSX } from "preact";
import { useKeys } from "../keys";
import { setQuery } from "../router";

export function StepPicker({ step, steps }: { step: number; steps: number[] }): JSX.Element {
  const place = steps.indexOf(step);
  const go = (to: number | undefined): void => {
    if (to !== undefined) setQuery({ step: to, task: null, token: null }, "push");
  };
  const before = place < 0 ? undefined : steps[place - 1];
  const after = place < 0 ? undefined : steps[place + 1];
  useKeys([
    { key: "[", says: "step before", run: () => go(before) },
    { key: "]", says: "step after", run: () => go(after) },
  ]);
  return (
    <span class="stepper">
      <button type="button" disabled={before === undefined} onClick={() => go(before)} aria-label="step before">
        ‹
      </button>
      <label>
        step{" "}
        <select
          aria-label="step"
          value={String(step)}
          onChange={(event) => go(Number(event.currentTarget.value))}
        >
          {place < 0 ? <option value={String(step)}>{step}</option> : null}
          {steps.map((each) => (
            <option key={each} value={String(each)}>
              {each}
            </option>
          ))}
        </select>
      </label>
      <button type="button" disabled={after === undefined} onClick={() => go(after)} aria-label="step after">
        ›
      </button>
    </span>
  );
}
