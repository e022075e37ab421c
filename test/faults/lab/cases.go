// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"cmp"
	"context"
	"flag"
	"math/rand/v2"
	"sync"

	"golang.org/x/sync/errgroup"
)

// KeepEnv names a folder in which logs of runs with violations are left, and samples.
const KeepEnv = "DROVER_FAULTS_DIR"

var atOnceFlag = flag.Int("at-once", 32, "how many cases of all kinds run at a time at most; fewer on a host with other work")

// slots has room for the cases of all kinds that run at a time.
var slots = sync.OnceValue(func() chan struct{} { return make(chan struct{}, max(1, *atOnceFlag)) })

// ForEach calls do for each of some items, several at a time, until one fails.
func ForEach[T any](ctx context.Context, parallel int, items []T, do func(context.Context, T) error) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(Parallel(parallel))
	for _, item := range items {
		if groupCtx.Err() != nil {
			break
		}
		group.Go(func() error {
			slots() <- struct{}{}
			defer func() { <-slots() }()
			return do(groupCtx, item)
		})
	}
	return cmp.Or(group.Wait(), ctx.Err())
}

// Parallel returns how many cases run at a time, of as many at most.
func Parallel(most int) int { return min(most, cap(slots())) }

// sampleSeed selects the items of Sample.
const sampleSeed = 16

// Sample returns some of the items, in random order and always the same ones of the same items.
func Sample[T any](all []T, limit int) []T {
	random := rand.New(rand.NewPCG(sampleSeed, sampleSeed)) //nolint:gosec // Chance, not secrecy.
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:min(len(all), limit)]
}
