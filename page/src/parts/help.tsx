// Shows which keys do what on the page that is open.
import type { JSX } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { listKeys } from "../keys";

export function Help({ onClose }: { onClose: () => void }): JSX.Element {
  const dialog = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => {
    dialog.current!.showModal();
  }, []);
  return (
    <dialog
      ref={dialog}
      aria-label="Keys of this page"
      onClose={onClose}
      onKeyDown={(event) => {
        if (event.key !== "?") return;
        event.preventDefault();
        dialog.current!.close();
      }}
    >
      <h2>Keys of this page</h2>
      <dl class="keys">
        {listKeys().map(({ key, says }) => (
          <div>
            <dt><kbd>{key}</kbd></dt>
            <dd>{says}</dd>
          </div>
        ))}
        <div>
          <dt><kbd>↑</kbd> <kbd>↓</kbd></dt>
          <dd>row of a table; Enter opens it</dd>
        </div>
        <div>
          <dt><kbd>←</kbd> <kbd>→</kbd></dt>
          <dd>point of a curve, token of a turn</dd>
        </div>
      </dl>
      <form method="dialog">
        <button>Close</button>
      </form>
    </dialog>
  );
}
