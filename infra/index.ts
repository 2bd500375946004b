/** Setting up, deploying and running a project from a program of one's own; `cronce` does the same by commands. */
export { build, buildFolderOf, BuildError, type Built } from './build.ts';
export {
  deploymentOf,
  DeploymentError,
  type Deployment,
  type DeploymentOptions,
  type LambdaFunction,
  type Resource,
} from './deployment.ts';
export {
  startPostgres,
  LocalPostgresError,
  type LocalPostgres,
  type LocalPostgresOptions,
} from './local/postgres.ts';
export { startLocal, LocalError, type Local, type LocalOptions } from './local/setup.ts';
export { migrate, MigrationError, type MigrateOptions } from './migrate.ts';
export { openProject, serviceOf, ProjectError, type Project } from './project.ts';
