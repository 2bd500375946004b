/** This checkout, as the project that it is. */
import { fileURLToPath } from 'node:url';
import { exampleMigrationsOf } from '../../infra/project.ts';

export const root = fileURLToPath(new URL('../..', import.meta.url));
/** The tables of its example jobs. */
export const examples = exampleMigrationsOf(root);
