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
	maxPerVM, maxPerUser, maxTotal int

	mu       sync.Mutex
	lifetime context.Context // nil before the Handler runs
	closed   bool            // no stream enters any more
	perVM    map[types.UID]int
	perUser  map[string]int
	total    int
	all      sync.WaitGroup
}

// newAdmission allows a user a quarter of all streams, so that one alone does not take them.
func newAdmission(perVM, total int) admission {
	return admission{
		maxPerVM: perVM, maxPerUser: max(perVM, total/4), maxTotal: total,
		perVM: map[types.UID]int{}, perUser: map[string]int{},
	}
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
func (a *admission) enter(uid types.UID, user string) (lifetime context.Context, exit func(), err error) {
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
	case a.perUser[user] >= a.maxPerUser:
		return nil, nil, tooMany("user %.200q has %d open streams, the most that this controller allows one user", user, a.maxPerUser)
	}
	a.perVM[uid]++
	a.perUser[user]++
	a.total++
	a.all.Add(1)
	return a.lifetime, func() { a.exit(uid, user) }, nil
}

func (a *admission) exit(uid types.UID, user string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.total--
	if a.perVM[uid]--; a.perVM[uid] == 0 {
		delete(a.perVM, uid)
	}
	if a.perUser[user]--; a.perUser[user] == 0 {
		delete(a.perUser, user)
	}
	a.all.Done()
}

func tooMany(format string, args ...any) error {
	return failure(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, format, args...)
}
