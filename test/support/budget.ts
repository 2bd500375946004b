/** KB minified of a job's function, as Lambda loads it. A cold start pays for every one of them. */
export const budgetKb = { all: 338, neon: 271 };
