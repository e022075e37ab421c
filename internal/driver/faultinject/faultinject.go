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
	"cloudnative.tw/drover/internal/driver/kit"
)

// availabilityPeriod is how often an open Watch checks whether the file makes the engine
// unavailable.
const availabilityPeriod = 200 * time.Millisecond

// faultyDriver is a driver with injected faults.
type faultyDriver struct {
	driver.Driver
	clock clock.WithTicker
	file  *faultsFile

	mu    sync.Mutex
	names map[types.UID]string // "namespace/name" of servers that a call has named
}

// Wrap makes d fail as the file at path describes.
func Wrap(d driver.Driver, path string, c clock.WithTicker, log logr.Logger) driver.Driver {
	return &faultyDriver{
		Driver: d, clock: c, names: map[types.UID]string{},
		file: &faultsFile{path: path, log: log, failures: map[failureKey]int{}},
	}
}

// Unwrap makes the optional interfaces of the driver reachable (driver.As).
func (d *faultyDriver) Unwrap() driver.Driver { return d.Driver }

// Ensure applies the faults of the VM's entry.
func (d *faultyDriver) Ensure(ctx context.Context, spec driver.ServerSpec) (driver.Server, error) {
	vm := spec.Namespace + "/" + spec.Name
	d.recordName(spec.UID, vm)
	entry, fault, err := d.beforeCall(ctx, vm)
	if err == nil {
		err = d.failCreate(ctx, entry, fault, spec)
	}
	if err != nil {
		return driver.Server{}, err
	}
	s, err := d.Driver.Ensure(ctx, spec)
	if err == nil && fault.SucceedThenTimeout {
		return driver.Server{}, fault.timeoutError(vm)
	}
	return s, err
}

// Delete applies the faults of the VM's entry.
func (d *faultyDriver) Delete(ctx context.Context, t driver.Target, retain bool) error {
	vm := d.nameOf(t.UID)
	_, fault, err := d.beforeCall(ctx, vm)
	if err != nil {
		return err
	}
	err = d.Driver.Delete(ctx, t, retain)
	switch {
	case errors.Is(err, driver.ErrNotFound):
		d.forgetName(t.UID)
	case err == nil && fault.SucceedThenTimeout:
		return fault.timeoutError(vm)
	}
	return err
}

// List applies the faults of the entry "*".
func (d *faultyDriver) List(ctx context.Context, uids ...types.UID) ([]driver.Server, error) {
	if err := d.beforeEngineCall(ctx); err != nil {
		return nil, err
	}
	servers, err := d.Driver.List(ctx, uids...)
	if err == nil && len(uids) == 0 {
		d.forgetNames()
	}
	for _, s := range servers {
		d.recordName(s.UID, s.Namespace+"/"+s.Name)
	}
	return servers, err
}

// Usage applies the faults of the entry "*".
func (d *faultyDriver) Usage(ctx context.Context, uids ...types.UID) ([]driver.Usage, error) {
	if err := d.beforeEngineCall(ctx); err != nil {
		return nil, err
	}
	return d.Driver.Usage(ctx, uids...)
}

// EngineID applies the faults of the entry "*".
func (d *faultyDriver) EngineID(ctx context.Context) (string, error) {
	if err := d.beforeEngineCall(ctx); err != nil {
		return "", err
	}
	identifier, ok := driver.As[driver.Identifier](d.Driver)
	if !ok {
		return "", driver.Errorf(driver.ErrUnsupported, "the driver does not report its engine's id")
	}
	return identifier.EngineID(ctx)
}

// Watch closes its channel when the file makes the engine unavailable.
func (d *faultyDriver) Watch(ctx context.Context) (<-chan types.UID, error) {
	if err := d.checkAvailable(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	source, err := d.Driver.Watch(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	events := make(chan types.UID)
	go func() {
		defer cancel()
		d.forwardEvents(ctx, source, events)
	}()
	return events, nil
}

// forwardEvents forwards events, one at a time, until source is closed or the file makes
// the engine unavailable.
func (d *faultyDriver) forwardEvents(ctx context.Context, source <-chan types.UID, events chan<- types.UID) {
	defer close(events)
	poll := d.clock.NewTicker(availabilityPeriod)
	defer poll.Stop()
	var unsent types.UID
	for {
		receive, send := source, events
		if unsent != "" {
			receive = nil
		} else {
			send = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-poll.C():
			if d.checkAvailable() != nil {
				return
			}
		case uid, open := <-receive:
			if !open {
				return
			}
			unsent = uid
		case send <- unsent:
			unsent = ""
		}
	}
}

// beforeCall applies the faults that come before a call for one VM, and returns the VM's entry.
func (d *faultyDriver) beforeCall(ctx context.Context, vm string) (entry string, fault Fault, err error) {
	if err := d.checkAvailable(); err != nil {
		return "", Fault{}, err
	}
	entry, fault = d.file.faultFor(vm)
	return entry, fault, d.delayCall(ctx, fault)
}

// beforeEngineCall applies the faults that come before a call for the whole engine.
func (d *faultyDriver) beforeEngineCall(ctx context.Context) error {
	if err := d.checkAvailable(); err != nil {
		return err
	}
	_, fault := d.file.faultFor("")
	return d.delayCall(ctx, fault)
}

func (d *faultyDriver) checkAvailable() error {
	if _, fault := d.file.faultFor(""); fault.EngineUnavailable {
		return driver.Errorf(driver.ErrUnavailable, "%s", fault.messageOr("the engine is unreachable"))
	}
	return nil
}

// delayCall delays a call by the fault's latency, or until ctx ends if the fault is a hang.
func (d *faultyDriver) delayCall(ctx context.Context, f Fault) error {
	if f.Hang {
		<-ctx.Done()
		return fmt.Errorf("%s: %w", f.messageOr("the call hung"), context.Cause(ctx))
	}
	if f.Latency.Duration == 0 {
		return nil
	}
	if err := kit.Pause(ctx, d.clock, f.Latency.Duration); err != nil {
		return fmt.Errorf("%s: %w", f.messageOr("the call was slow"), err)
	}
	return nil
}

// failCreate returns an error if Ensure would create the server and the fault's count is not used up.
func (d *faultyDriver) failCreate(ctx context.Context, entry string, f Fault, spec driver.ServerSpec) error {
	if f.FailCreate == 0 {
		return nil
	}
	exists, err := d.serverExists(ctx, spec.UID)
	if err != nil || exists || !d.file.countFailure(entry, spec.Namespace+"/"+spec.Name) {
		return err
	}
	return driver.Errorf(kinds[cmp.Or(f.Kind, "retry")], "%s", f.messageOr("the creation failed"))
}

func (d *faultyDriver) serverExists(ctx context.Context, uid types.UID) (bool, error) {
	servers, err := d.Driver.List(ctx, uid)
	for _, s := range servers {
		if !s.Retained && s.State != driver.StatePending {
			return true, nil
		}
	}
	return false, err
}

// timeoutError returns an error that does not tell whether the call has taken effect.
func (f Fault) timeoutError(vm string) error {
	return fmt.Errorf("%s for %s: %w", f.messageOr("the engine did not answer"), vm, context.DeadlineExceeded)
}

func (f Fault) messageOr(fallback string) string {
	return cmp.Or(f.Message, fallback+" (simulated by the faults file)")
}

func (d *faultyDriver) recordName(uid types.UID, vm string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.names[uid] = vm
}

func (d *faultyDriver) nameOf(uid types.UID) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.names[uid]
}

func (d *faultyDriver) forgetName(uid types.UID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.names, uid)
}

// forgetNames drops the names of servers that are gone. The caller has a complete list, with the names of all others.
func (d *faultyDriver) forgetNames() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.names)
}
