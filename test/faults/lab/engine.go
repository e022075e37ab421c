// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/rules"
)

// Engine runs the servers of a world.
type Engine interface {
	Place
	Requests
	Breakage
}

// Place is where servers are.
type Place interface {
	Program
	// Prepare makes what is not Drover's, which must stay as it is (O6).
	Prepare(ctx context.Context, w *World) error
	// Inspect returns the history of servers, and their states now.
	Inspect(ctx context.Context, w *World, processes []rules.Process) (Observed, error)
	// CleanUp removes all servers.
	CleanUp(ctx context.Context, w *World) error
}

// Program is how controllers use an engine.
type Program interface {
	// Name is the driver's, or that of a variant of it.
	Name() string
	// Runs reports whether a workload has anything to show on this engine.
	Runs(workload string) bool
	// Args are the driver's flags.
	Args(w *World) []string
	// Variables returns the environment variables of controllers, for the driver.
	Variables(w *World) []string
}

// Requests are the requests that users may make of an engine.
type Requests interface {
	// NewVM returns a VirtualMachine that runs on this engine.
	NewVM(name string) *framework.VMBuilder
	// Resize changes those fields of a spec that a running server can follow.
	Resize(vm *api.VirtualMachine)
}

// Jobs is an engine whose servers can end by themselves.
type Jobs interface {
	// NewJob returns a VirtualMachine whose server ends successfully in its first run, which is its only one.
	NewJob(name string) *framework.VMBuilder
}

// Breakage is a defect of an engine.
type Breakage interface {
	// BreakImage makes the creation of a server fail as a wrong image does, and returns the
	// image to use for that; empty means any. RepairImage returns a good one.
	BreakImage(ctx context.Context, w *World, vm string) (image string, err error)
	RepairImage(ctx context.Context, w *World) (image string, err error)
	// Outage makes the engine unreachable, or puts another one in its place where exchanged
	// is set, until the caller calls back.
	Outage(ctx context.Context, w *World, exchanged bool) (back func() error, err error)
}

// Observed is an engine as it is, and as it became that.
type Observed struct {
	// Servers are the servers that exist.
	Servers []Server
	// Effects are by the name of a VirtualMachine.
	Effects map[string]Effects
	// Unreported count the runs that no status has named, where that is known.
	Unreported map[string]int
	// Created is when the first server of each UID was created.
	Created map[types.UID]time.Time
	// Violations are those that the engine alone shows.
	Violations []Violation
	// Text is all that was stored outside of the API in readable form, in which no secret
	// may be.
	Text string
}

func newObserved() Observed {
	return Observed{Effects: map[string]Effects{}, Unreported: map[string]int{}, Created: map[types.UID]time.Time{}}
}

// Server is a server of the world, or one that was released.
type Server = rules.Server

// Effects count what was done to the servers of a name. A change that was asked for again
// after a crash and found done does not count.
type Effects struct {
	Creates, Deletes, Releases, Runs int
}

// readRecords reads the records of servers whose files match a pattern, and returns their
// text too. A file may be removed meanwhile.
func readRecords[R any](pattern string) (records []R, text string, err error) {
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return nil, "", err
	}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var r R
		if err == nil {
			err = json.Unmarshal(content, &r)
		}
		if err != nil {
			return nil, "", fmt.Errorf("%s: %w", path, err)
		}
		records, text = append(records, r), text+string(content)
	}
	return records, text, nil
}

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
