// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package filesync keeps the files of spec.files in running guests as their Secrets and ConfigMaps are. Start
// with Syncer.
package filesync

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/secrets"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
)

const (
	// period is the time between two looks at the Secrets and ConfigMaps, and at what the guest has. However
	// often they change, the guest gets their content once in that time. After failures of the guest it doubles up to
	// maxPeriod.
	period    = 20 * time.Second
	maxPeriod = 8 * period
	// guestTimeout bounds each call to a guest.
	guestTimeout = 15 * time.Second
	// maxWrites is how many guests are written to at a time, and so how many folders are in memory. Namespaces
	// share them.
	maxWrites = 8
)

// Syncer writes files in the background, so that no guest blocks a worker. Each time it reads the objects again, and
// compares them with the report of the guest, so that a kill loses nothing.
type Syncer struct {
	Clock clock.Clock
	// Live reads Secrets and ConfigMaps from the API, because a cache would need the right to list them.
	Live client.Reader
	// Driver writes the files.
	Driver driver.FileWriter
	// MayAct returns an error while this process is not certain to lead.
	MayAct func() error
	// Requeue is called at each change of a Result.
	Requeue func(types.NamespacedName)

	ctx     context.Context // ends all work
	objects *objects
	writes  *turns
	mu      sync.Mutex
	tasks   map[types.NamespacedName]*task
}

// Result is the outcome of the last look at the files of a VirtualMachine.
type Result struct {
	// Reason is api.ReasonFilesCurrent, api.ReasonFilesUnavailable or api.ReasonFilesStale; empty if
	// nothing is known.
	Reason string
	// IsPending is set before the first look, so that an earlier result of another process still counts.
	IsPending bool
	// Message is for users.
	Message string
}

// task follows one run of a server.
type task struct {
	target target
	vm     *api.VirtualMachine
	stop   context.CancelFunc
	result Result
	// unusable has the folders of spec.files whose objects cannot be used as they are, by their index. Only
	// the task itself uses it.
	unusable map[int]unusable
}

// unusable is a revision of a folder that is not read again.
type unusable struct {
	revision string
	err      error
}

// target identifies a run and the spec that it should have.
type target struct {
	uid        types.UID
	run        string
	generation int64
}

// Start makes the work of s end with ctx. It must be called first.
func (s *Syncer) Start(ctx context.Context) *Syncer {
	s.ctx, s.writes, s.tasks = ctx, newTurns(maxWrites), map[types.NamespacedName]*task{}
	s.objects = &objects{ctx: ctx, clock: s.Clock, live: s.Live, turns: newTurns(maxReads), known: map[object]*reading{}}
	return s
}

// Check returns the last result for a VirtualMachine, and starts or stops the work as needed.
func (s *Syncer) Check(vm *api.VirtualMachine, observed inventory.Observation) Result {
	if s == nil {
		return Result{}
	}
	key := client.ObjectKeyFromObject(vm)
	s.mu.Lock()
	defer s.mu.Unlock()
	have := s.tasks[key]
	switch {
	case observed.Answer == inventory.Unknown && have != nil:
		return have.result
	case len(vm.Spec.Files) == 0 || !observed.IsRunning() || observed.Server.IsBooting || vm.DeletionTimestamp != nil:
		s.end(key)
		return Result{}
	}
	wanted := target{observed.Server.UID, observed.Server.Run, vm.Generation}
	if have == nil || have.target != wanted {
		have = s.begin(key, wanted, vm)
	}
	return have.result
}

// Forget ends the work for a VirtualMachine.
func (s *Syncer) Forget(key types.NamespacedName) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(key)
}

// begin starts a task in place of the present one, whose result counts until the new one has looked. The caller
// holds the lock.
func (s *Syncer) begin(key types.NamespacedName, wanted target, vm *api.VirtualMachine) *task {
	ctx, stop := context.WithCancel(s.ctx)
	next := &task{target: wanted, vm: vm.DeepCopy(), stop: stop, result: Result{IsPending: true}, unusable: map[int]unusable{}}
	if old := s.tasks[key]; old != nil {
		old.stop()
		next.result = old.result
	}
	s.tasks[key] = next
	go s.run(ctx, key, next)
	return next
}

func (s *Syncer) end(key types.NamespacedName) {
	if old := s.tasks[key]; old != nil {
		old.stop()
		delete(s.tasks, key)
	}
}

// run looks at the files until ctx ends.
func (s *Syncer) run(ctx context.Context, key types.NamespacedName, t *task) {
	for pause := period; ; {
		if s.MayAct() == nil {
			result, hasFailed := s.sync(ctx, t)
			s.record(ctx, key, t, result)
			if hasFailed {
				pause = min(2*pause, maxPeriod)
			} else {
				pause = period
			}
		}
		if !waitFor(ctx, s.Clock, pause) {
			return
		}
	}
}

// record records a result, unless the task was stopped during the look: then ctx has ended.
func (s *Syncer) record(ctx context.Context, key types.NamespacedName, t *task, result Result) {
	s.mu.Lock()
	changed := ctx.Err() == nil && t.result != result
	if changed {
		t.result = result
	}
	s.mu.Unlock()
	if changed {
		s.Requeue(key)
	}
}

// sync gives the guest the files that it lacks and that can be read. It reads no content before the guest has answered,
// and that of one folder at a time. hasFailed reports whether the guest has failed.
func (s *Syncer) sync(ctx context.Context, t *task) (_ Result, hasFailed bool) {
	has, err := s.askGuest(ctx, t)
	if err != nil {
		return Result{Reason: api.ReasonFilesStale, Message: fmt.Sprintf("the guest does not report its files: %v", err)}, true
	}
	var missing, late, failed []error
	for n, f := range t.vm.Spec.Files {
		revision, ok := has[f.MountPath]
		if !ok {
			late = append(late, fmt.Errorf("%s: this run does not have the folder, and gets it at a restart", f.MountPath))
			continue
		}
		isMissing, err := s.syncFolder(ctx, t, n, revision)
		switch {
		case isMissing:
			missing = append(missing, err)
		case err != nil:
			failed = append(failed, fmt.Errorf("%s: %w", f.MountPath, err))
		}
	}
	switch stale := slices.Concat(failed, late); {
	case len(stale) > 0:
		return Result{Reason: api.ReasonFilesStale, Message: fmt.Sprintf("the guest keeps older files: %v", errors.Join(slices.Concat(stale, missing)...))}, len(failed) > 0
	case len(missing) > 0:
		return Result{Reason: api.ReasonFilesUnavailable, Message: fmt.Sprintf("the guest keeps the files that it has: %v", errors.Join(missing...))}, false
	}
	return Result{Reason: api.ReasonFilesCurrent}, false
}

// askGuest returns the revisions that a guest reports.
func (s *Syncer) askGuest(ctx context.Context, t *task) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, guestTimeout)
	defer cancel()
	return s.Driver.FileRevisions(ctx, t.target.uid)
}

// syncFolder writes the folder of spec.files[n] unless the guest has it. isMissing reports whether the error is of its
// object, not of the guest. The content of an object is read only if its version is not the guest's, and once if it
// cannot be used.
func (s *Syncer) syncFolder(ctx context.Context, t *task, n int, has string) (isMissing bool, err error) {
	f := t.vm.Spec.Files[n]
	version, err := s.objects.readVersion(ctx, object{t.vm.Namespace, secrets.ObjectOf(f)})
	if err == nil {
		err = version.CheckExists(f)
	}
	if err != nil {
		return true, secrets.UnavailableError(n, f, err)
	}
	switch version.Revision(f) {
	case has:
		return false, nil
	case t.unusable[n].revision:
		return true, t.unusable[n].err
	}
	if err := s.writes.take(ctx, t.vm.Namespace); err != nil {
		return true, err
	}
	defer s.writes.give(t.vm.Namespace)
	mount, err := s.objects.readFolder(ctx, t.vm, n)
	switch {
	case err != nil:
		t.unusable[n] = unusable{mount.Revision, err}
		return true, err
	case mount.Revision == has:
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, guestTimeout)
	defer cancel()
	return false, s.Driver.WriteFiles(ctx, t.target.uid, mount)
}
