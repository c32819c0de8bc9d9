// Shows how the system and first messages of each agent have changed, with what differs.
import type { JSX } from "preact";
import type { ViewProps } from "../app";
import type { AgentPrompts } from "../api";
import { useAnswer, writeRequest } from "../fetching";
import { count } from "../format";
import { Badge, Empty, Section, Waiting } from "../parts/basics";
import { Block, Text, WordDiff } from "../parts/text";

export function PromptsView({ run }: ViewProps): JSX.Element {
  const { data, error } = useAnswer("Prompts", writeRequest("prompts", { run }));
  if (!data) return <Waiting error={error} what="prompts" />;
  return (
    <>
      <div class="heading">
        <h1>Prompts</h1>
        <span class="note">{data.searched_steps} of {count(data.of_steps, "step")} read</span>
      </div>
      {data.agents.map((each) => <Versions key={`${each.agent} ${each.role}`} prompts={each} />)}
      {data.agents.length ? null : <Empty>No messages are recorded.</Empty>}
    </>
  );
}

function Versions({ prompts }: { prompts: AgentPrompts }): JSX.Element {
  const title = `${prompts.agent}, ${prompts.role} message`;
  const total = prompts.versions.length + prompts.more;
  return (
    <Section title={title} note={total === 1 ? "never changed" : `${total} versions`}>
      {prompts.versions.map((version, place) => {
        const before = prompts.versions[place - 1];
        const [first, last] = version.steps;
        return (
          <details open={prompts.versions.length <= 2 || place === 0} class="version">
            <summary>
              <Badge kind=""><Text>{version.hash.slice(0, 8)}</Text></Badge> steps {first} to {last},{" "}
              {count(version.count, "turn")}
            </summary>
            {before && prompts.role === "system" ? (
              <WordDiff before={before.text} after={version.text} />
            ) : (
              <Block text={version.text} />
            )}
            <p><a href={version.example.href}>an example</a></p>
          </details>
        );
      })}
      {prompts.more ? <p class="quiet">{prompts.more} more versions are not listed.</p> : null}
    </Section>
  );
}
