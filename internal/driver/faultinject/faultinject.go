// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package faultinject

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
)

// lookEvery is how soon an open Watch notices that the engine is to be
// unreachable.
const lookEvery = 200 * time.Millisecond

// faulty is a driver with faults.
type faulty struct {
	driver.Driver
	clock clock.WithTicker
	file  *file

	mu    sync.Mutex
	names map[types.UID]string // "namespace/name" of the servers met so far
}

// Wrap makes d fail as the file at path describes.
func Wrap(d driver.Driver, path string, c clock.WithTicker, log logr.Logger) driver.Driver {
	return &faulty{
		Driver: d, clock: c, names: map[types.UID]string{},
		file: &file{path: path, log: log, spent: map[spent]int{}},
	}
}

// Unwrap makes the optional interfaces of the driver reachable (driver.As).
func (d *faulty) Unwrap() driver.Driver { return d.Driver }

// Ensure fails as the VM's entry specifies.
func (d *faulty) Ensure(ctx context.Context, spec driver.ServerSpec) (driver.Server, error) {
	vm := spec.Namespace + "/" + spec.Name
	d.meet(spec.UID, vm)
	entry, fault, err := d.before(ctx, vm)
	if err == nil {
		err = d.failCreate(ctx, entry, fault, spec)
	}
	if err != nil {
		return driver.Server{}, err
	}
	s, err := d.Driver.Ensure(ctx, spec)
	if err == nil && fault.SucceedThenTimeout {
		return driver.Server{}, fault.timeout(vm)
	}
	return s, err
}

// Delete fails as the VM's entry specifies.
func (d *faulty) Delete(ctx context.Context, t driver.Target, retain bool) error {
	vm := d.nameOf(t.UID)
	_, fault, err := d.before(ctx, vm)
	if err != nil {
		return err
	}
	err = d.Driver.Delete(ctx, t, retain)
	switch {
	case errors.Is(err, driver.ErrNotFound):
		d.forget(t.UID)
	case err == nil && fault.SucceedThenTimeout:
		return fault.timeout(vm)
	}
	return err
}

// List fails as the entry "*" specifies.
func (d *faulty) List(ctx context.Context, uids ...types.UID) ([]driver.Server, error) {
	if err := d.beforeAll(ctx); err != nil {
		return nil, err
	}
	servers, err := d.Driver.List(ctx, uids...)
	if err == nil && len(uids) == 0 {
		d.forgetAll()
	}
	for _, s := range servers {
		d.meet(s.UID, s.Namespace+"/"+s.Name)
	}
	return servers, err
}

// Usage fails as the entry "*" specifies.
func (d *faulty) Usage(ctx context.Context, uids ...types.UID) ([]driver.Usage, error) {
	if err := d.beforeAll(ctx); err != nil {
		return nil, err
	}
	return d.Driver.Usage(ctx, uids...)
}

// EngineID fails as the entry "*" specifies.
func (d *faulty) EngineID(ctx context.Context) (string, error) {
	if err := d.beforeAll(ctx); err != nil {
		return "", err
	}
	identifier, ok := driver.As[driver.Identifier](d.Driver)
	if !ok {
		return "", driver.Errorf(driver.ErrUnsupported, "the driver does not tell its engine's id")
	}
	return identifier.EngineID(ctx)
}

// Watch closes when the engine is to be unreachable.
func (d *faulty) Watch(ctx context.Context) (<-chan types.UID, error) {
	if err := d.unavailable(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	in, err := d.Driver.Watch(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	out := make(chan types.UID)
	go func() {
		defer cancel()
		d.pass(ctx, in, out)
	}()
	return out, nil
}

// pass forwards events until there are no more or the engine is to be unreachable.
func (d *faulty) pass(ctx context.Context, in <-chan types.UID, out chan<- types.UID) {
	defer close(out)
	look := d.clock.NewTicker(lookEvery)
	defer look.Stop()
	var head types.UID
	for {
		// Take one event, then offer it before taking the next.
		from, to := in, out
		if head != "" {
			from = nil
		} else {
			to = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-look.C():
			if d.unavailable() != nil {
				return
			}
		case uid, open := <-from:
			if !open {
				return
			}
			head = uid
		case to <- head:
			head = ""
		}
	}
}

// before applies the faults that precede a call for one VM.
func (d *faulty) before(ctx context.Context, vm string) (string, Fault, error) {
	if err := d.unavailable(); err != nil {
		return "", Fault{}, err
	}
	entry, fault := d.file.find(vm)
	return entry, fault, d.delay(ctx, fault)
}

// beforeAll applies the faults that precede a call for the engine.
func (d *faulty) beforeAll(ctx context.Context) error {
	if err := d.unavailable(); err != nil {
		return err
	}
	_, fault := d.file.find("")
	return d.delay(ctx, fault)
}

func (d *faulty) unavailable() error {
	if _, fault := d.file.find(""); fault.EngineUnavailable {
		return driver.Errorf(driver.ErrUnavailable, "%s", fault.say("the engine is out of reach"))
	}
	return nil
}

// delay delays a call, until ctx ends if the call is to hang.
func (d *faulty) delay(ctx context.Context, f Fault) error {
	if f.Hang {
		<-ctx.Done()
		return fmt.Errorf("%s: %w", f.say("the call hung"), context.Cause(ctx))
	}
	if f.Latency.Duration == 0 {
		return nil
	}
	timer := d.clock.NewTimer(f.Latency.Duration)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", f.say("the call was slow"), context.Cause(ctx))
	case <-timer.C():
		return nil
	}
}

// failCreate fails an Ensure that would create a server.
func (d *faulty) failCreate(ctx context.Context, entry string, f Fault, spec driver.ServerSpec) error {
	if f.FailCreate == 0 {
		return nil
	}
	there, err := d.exists(ctx, spec.UID)
	if err != nil || there || !d.file.spend(entry, spec.Namespace+"/"+spec.Name) {
		return err
	}
	return driver.Errorf(kinds[cmp.Or(f.Kind, "retry")], "%s", f.say("the creation failed"))
}

func (d *faulty) exists(ctx context.Context, uid types.UID) (bool, error) {
	servers, err := d.Driver.List(ctx, uid)
	for _, s := range servers {
		if !s.Retained && s.State != driver.StatePending {
			return true, nil
		}
	}
	return false, err
}

// timeout returns an error that leaves open whether the call was done.
func (f Fault) timeout(vm string) error {
	return fmt.Errorf("%s for %s: %w", f.say("the engine did not answer"), vm, context.DeadlineExceeded)
}

func (f Fault) say(what string) string {
	return cmp.Or(f.Message, what+" (simulated by the faults file)")
}

func (d *faulty) meet(uid types.UID, vm string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.names[uid] = vm
}

func (d *faulty) nameOf(uid types.UID) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.names[uid]
}

func (d *faulty) forget(uid types.UID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.names, uid)
}

// forgetAll bounds the map: a complete list supplies the names of all servers again.
func (d *faulty) forgetAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.names)
}
