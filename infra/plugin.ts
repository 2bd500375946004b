/** What Cronce adds to the framework's own commands, whoever calls them: what they run or package is built before. */
import { build, BuildError } from './build.ts';
import { startStandIn } from './local/stand-in.ts';

/** A message for people; null where all went well. */
export async function buildFirst(): Promise<string | null> {
  try {
    await build();
    return null;
  } catch (error) {
    if (error instanceof BuildError) return `build: ${error.message}`;
    throw error;
  }
}

/** Before serverless-offline starts. */
export { startStandIn as standIn };
