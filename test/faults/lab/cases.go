// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"cmp"
	"context"
	"math/rand/v2"
	"os"
	"strconv"

	"golang.org/x/sync/errgroup"
)

const (
	// KeepEnv names a folder in which logs of runs with violations are left, and samples.
	KeepEnv = "DROVER_FAULTS_DIR"
	// parallelEnv is how many cases run at a time at most, where other work runs beside them.
	parallelEnv = "DROVER_FAULTS_PARALLEL"
)

// ForEach calls do for each of some items, several at a time, until one fails.
func ForEach[T any](ctx context.Context, parallel int, items []T, do func(context.Context, T) error) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(Parallel(parallel))
	for _, item := range items {
		if groupCtx.Err() != nil {
			break
		}
		group.Go(func() error { return do(groupCtx, item) })
	}
	return cmp.Or(group.Wait(), ctx.Err())
}

// Parallel returns how many cases run at a time, of as many at most.
func Parallel(most int) int {
	if limit, err := strconv.Atoi(os.Getenv(parallelEnv)); err == nil && limit > 0 {
		return min(most, limit)
	}
	return most
}

// sampleSeed selects the items of Sample.
const sampleSeed = 16

// Sample returns some of the items, in random order and always the same ones of the same items.
func Sample[T any](all []T, limit int) []T {
	random := rand.New(rand.NewPCG(sampleSeed, sampleSeed)) //nolint:gosec // Chance, not secrecy.
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:min(len(all), limit)]
}
