// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"context"
	"net/http"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// admission counts the open streams, and lets them begin only while the Handler runs.
type admission struct {
	maxPerVM, maxTotal int

	mu       sync.Mutex
	lifetime context.Context // nil before the Handler runs
	closed   bool            // no stream enters any more
	perVM    map[types.UID]int
	total    int
	all      sync.WaitGroup
}

func newAdmission(perVM, total int) admission {
	return admission{maxPerVM: perVM, maxTotal: total, perVM: map[types.UID]int{}}
}

// open lets streams begin until lifetime ends.
func (a *admission) open(lifetime context.Context) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lifetime = lifetime
}

// wait waits for the streams to end, after lifetime has ended.
func (a *admission) wait() {
	a.mu.Lock()
	a.closed = true // whoever entered has been added
	a.mu.Unlock()
	a.all.Wait()
}

// enter counts a stream until exit is called. The stream has to end with lifetime.
func (a *admission) enter(uid types.UID) (lifetime context.Context, exit func(), err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.lifetime == nil:
		return nil, nil, ErrStarting
	case a.closed || a.lifetime.Err() != nil:
		return nil, nil, errStopping
	case a.perVM[uid] >= a.maxPerVM:
		return nil, nil, tooMany("this VirtualMachine has %d open streams, the most that are allowed", a.maxPerVM)
	case a.total >= a.maxTotal:
		return nil, nil, tooMany("this controller has %d open streams, the most that are allowed", a.maxTotal)
	}
	a.perVM[uid]++
	a.total++
	a.all.Add(1)
	return a.lifetime, func() { a.exit(uid) }, nil
}

func (a *admission) exit(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.total--
	if a.perVM[uid]--; a.perVM[uid] == 0 {
		delete(a.perVM, uid)
	}
	a.all.Done()
}

func tooMany(format string, args ...any) error {
	return failure(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, format, args...)
}
