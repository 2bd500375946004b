import { defineConfig } from 'vitest/config';
import { BaseSequencer, type TestSpecification } from 'vitest/node';

/** Where no run of before says how long each file takes, those that take minutes begin: the last to end ends alone. */
const longest = /(?:interleavings|faults\/campaign)\.test\.ts$/;

class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const sorted = await super.sort(files);
    const isLong = ({ moduleId }: TestSpecification) => longest.test(moduleId);
    return [...sorted.filter(isLong), ...sorted.filter((file) => !isLong(file))];
  }
}

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    globalSetup: ['test/support/global-setup.ts'],
    // Threads would share a process, and faults here end, freeze and block processes.
    pool: 'forks',
    // Much of it waits for leases and timers: as many files at once as there are cores, however few.
    maxWorkers: '100%',
    // Rows of the fault campaign, which mostly wait; more of them would starve each other's processes.
    maxConcurrency: 3,
    sequence: { sequencer: LongestFirst },
    testTimeout: 30_000,
    // What a hook sets up is a server, a build or a package: on a busy machine a minute was not enough.
    hookTimeout: 180_000,
  },
});
