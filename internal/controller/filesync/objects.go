// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package filesync

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/secrets"
	"cloudnative.tw/drover/internal/driver"
)

const (
	// maxReads is how many Secrets and ConfigMaps are read at a time, and maxReadRate how many in a second. Namespaces
	// share them.
	maxReads, maxReadRate = 8, 50
	// readTime is how long a read has its slot at least.
	readTime = maxReads * time.Second / maxReadRate
	// readTimeout bounds a read.
	readTimeout = 30 * time.Second
	// maxAge is how long VirtualMachines share what was read of an object.
	maxAge = period / 2
)

// objects reads the versions of Secrets and ConfigMaps. It keeps no content.
type objects struct {
	ctx   context.Context // ends all reads
	clock clock.Clock
	live  client.Reader
	turns *turns

	mu    sync.Mutex
	known map[object]*reading
}

// object identifies a Secret or ConfigMap.
type object struct {
	namespace string
	secrets.Object
}

// reading is a read that has begun. Its other fields are set once done is closed.
type reading struct {
	done    chan struct{}
	began   time.Time
	version secrets.Version
	err     error
}

// readVersion returns the version of an object, at most maxAge old.
func (o *objects) readVersion(ctx context.Context, key object) (secrets.Version, error) {
	r := o.beginReading(key) //nolint:contextcheck // others wait for the same read
	select {
	case <-r.done:
		return r.version, r.err
	case <-ctx.Done():
		return secrets.Version{}, context.Cause(ctx)
	}
}

// beginReading returns the present read of an object, or begins one.
func (o *objects) beginReading(key object) *reading {
	o.mu.Lock()
	defer o.mu.Unlock()
	r := o.known[key]
	if r != nil {
		select {
		case <-r.done:
			if o.clock.Since(r.began) < maxAge {
				return r
			}
		default:
			return r
		}
	}
	r = &reading{done: make(chan struct{})}
	o.known[key] = r
	go o.read(key, r)
	return r
}

// read reads an object for all who wait for it, and forgets it after maxAge.
func (o *objects) read(key object, r *reading) {
	r.err = o.turns.take(o.ctx, key.namespace)
	r.began = o.clock.Now()
	if r.err == nil {
		ctx, cancel := context.WithTimeout(o.ctx, readTimeout)
		r.version, r.err = secrets.ReadVersion(ctx, o.live, key.namespace, key.Object)
		cancel()
		go o.giveLater(key.namespace)
	}
	close(r.done)
	waitFor(o.ctx, o.clock, maxAge)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.known[key] == r {
		delete(o.known, key)
	}
}

// readFolder reads the folder of spec.files[n] with its content.
func (o *objects) readFolder(ctx context.Context, vm *api.VirtualMachine, n int) (driver.FileMount, error) {
	if err := o.turns.take(ctx, vm.Namespace); err != nil {
		return driver.FileMount{}, err
	}
	defer func() { go o.giveLater(vm.Namespace) }()
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return secrets.ReadMount(ctx, o.live, vm, n)
}

// giveLater gives the slot of a read back, after readTime so that maxReadRate holds.
func (o *objects) giveLater(namespace string) {
	waitFor(o.ctx, o.clock, readTime)
	o.turns.give(namespace)
}

// waitFor waits, and returns false if ctx ends before.
func waitFor(ctx context.Context, c clock.Clock, d time.Duration) bool {
	timer := c.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-ctx.Done():
		return false
	}
}
