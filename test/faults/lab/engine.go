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
	Inspector
	Requests
	Breakage
}

// Inspector prepares, inspects and cleans up an engine.
type Inspector interface {
	Program
	// Prepare prepares the engine, and creates servers of others, which Drover must not touch (rules.OthersUntouched).
	Prepare(ctx context.Context, w *World) error
	// Inspect returns the servers' history and their present states.
	Inspect(ctx context.Context, w *World, processes []rules.Process) (Observed, error)
	// CleanUp removes all servers.
	CleanUp(ctx context.Context, w *World) error
}

// Program says how controllers use an engine.
type Program interface {
	// Name is the name of the driver or of a variant of it.
	Name() string
	// Runs reports whether a workload makes sense on this engine.
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
	// NewJob returns a VirtualMachine whose server ends successfully, and fails if it is run a second time.
	NewJob(name string) *framework.VMBuilder
	// NewReader returns a VirtualMachine whose server ends when its files have the Secret as
	// World.ChangeSecret leaves it.
	NewReader(name string) *framework.VMBuilder
}

// Breakage breaks and repairs an engine.
type Breakage interface {
	// BreakImage makes the creation of a server fail as for a wrong image, and returns the
	// image to use; empty means any. RepairImage undoes it and returns a working image.
	BreakImage(ctx context.Context, w *World, vm string) (image string, err error)
	RepairImage(ctx context.Context, w *World) (image string, err error)
	// Outage makes the engine unreachable, or replaces it by another engine if exchanged is
	// set, until the caller calls back.
	Outage(ctx context.Context, w *World, exchanged bool) (back func() error, err error)
}

// Observed has the present state of an engine, and its history.
type Observed struct {
	// Servers are the servers that exist.
	Servers []Server
	// Effects has the effects on servers, by the names of VirtualMachines.
	Effects map[string]Effects
	// Unreported counts the runs that no status has ever named, for engines that know them.
	Unreported map[string]int
	// Created has the time at which the first server of each UID was created.
	Created map[types.UID]time.Time
	// Violations are the violations that the engine alone shows.
	Violations []Violation
	// Text is everything that was stored in readable form outside of the API. It must not
	// contain a secret.
	Text string
}

func newObserved() Observed {
	return Observed{Effects: map[string]Effects{}, Unreported: map[string]int{}, Created: map[types.UID]time.Time{}}
}

// Server is a server of the world, possibly a released one.
type Server = rules.Server

// Effects counts what was done to the servers of a name. A call that was repeated after a
// crash and found its change already made does not count.
type Effects struct {
	Creates, Deletes, Releases, Runs int
}

// readRecords reads the files that match a pattern as records of servers, and returns
// their text too. It skips files that are removed while it runs.
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

// KeepEnv is the variable with a folder for samples, and for logs of runs with violations.
const KeepEnv = "DROVER_FAULTS_DIR"

var atOnceFlag = flag.Int("at-once", 32, "the most cases of all kinds that run at a time; fewer on a host with other work")

// slots limits how many cases of all kinds run at a time.
var slots = sync.OnceValue(func() chan struct{} { return make(chan struct{}, max(1, *atOnceFlag)) })

// ForEach calls do for each item, several at a time, until a call fails.
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

// Parallel returns how many cases run at a time if a kind allows most.
func Parallel(most int) int { return min(most, cap(slots())) }

// sampleSeed selects the items of Sample.
const sampleSeed = 16

// Sample returns up to limit random items. The selection is the same in every run.
func Sample[T any](all []T, limit int) []T {
	random := rand.New(rand.NewPCG(sampleSeed, sampleSeed)) //nolint:gosec // Chance, not secrecy.
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:min(len(all), limit)]
}
