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

// availabilityPeriod is how soon an open Watch notices that the engine is to be
// unreachable.
const availabilityPeriod = 200 * time.Millisecond

// faultyDriver is a driver with faults.
type faultyDriver struct {
	driver.Driver
	clock clock.WithTicker
	file  *faultsFile

	mu    sync.Mutex
	names map[types.UID]string // "namespace/name" of the servers known so far
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

// Ensure fails as the VM's entry specifies.
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

// Delete fails as the VM's entry specifies.
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

// List fails as the entry "*" specifies.
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

// Usage fails as the entry "*" specifies.
func (d *faultyDriver) Usage(ctx context.Context, uids ...types.UID) ([]driver.Usage, error) {
	if err := d.beforeEngineCall(ctx); err != nil {
		return nil, err
	}
	return d.Driver.Usage(ctx, uids...)
}

// EngineID fails as the entry "*" specifies.
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

// Watch closes when the engine is to be unreachable.
func (d *faultyDriver) Watch(ctx context.Context) (<-chan types.UID, error) {
	if err := d.checkAvailable(); err != nil {
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
		d.forwardEvents(ctx, in, out)
	}()
	return out, nil
}

// forwardEvents forwards events until in is closed or the engine is to be
// unreachable.
func (d *faultyDriver) forwardEvents(ctx context.Context, in <-chan types.UID, out chan<- types.UID) {
	defer close(out)
	poll := d.clock.NewTicker(availabilityPeriod)
	defer poll.Stop()
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
		case <-poll.C():
			if d.checkAvailable() != nil {
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

// beforeCall applies the faults that precede a call for one VM.
func (d *faultyDriver) beforeCall(ctx context.Context, vm string) (string, Fault, error) {
	if err := d.checkAvailable(); err != nil {
		return "", Fault{}, err
	}
	entry, fault := d.file.faultFor(vm)
	return entry, fault, d.delayCall(ctx, fault)
}

// beforeEngineCall applies the faults that precede a call for the engine.
func (d *faultyDriver) beforeEngineCall(ctx context.Context) error {
	if err := d.checkAvailable(); err != nil {
		return err
	}
	_, fault := d.file.faultFor("")
	return d.delayCall(ctx, fault)
}

func (d *faultyDriver) checkAvailable() error {
	if _, fault := d.file.faultFor(""); fault.EngineUnavailable {
		return driver.Errorf(driver.ErrUnavailable, "%s", fault.messageOr("the engine is out of reach"))
	}
	return nil
}

// delayCall delays a call, until ctx ends if the call is to hang.
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

// failCreate fails an Ensure that would create a server.
func (d *faultyDriver) failCreate(ctx context.Context, entry string, f Fault, spec driver.ServerSpec) error {
	if f.FailCreate == 0 {
		return nil
	}
	there, err := d.serverExists(ctx, spec.UID)
	if err != nil || there || !d.file.countFailure(entry, spec.Namespace+"/"+spec.Name) {
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

// timeoutError returns an error that leaves open whether the call was done.
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

// forgetNames bounds the map: a complete list supplies the names of all servers again.
func (d *faultyDriver) forgetNames() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.names)
}
