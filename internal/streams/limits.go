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
	maxPerVM, maxPerUser, maxPerNamespace, maxTotal int

	mu       sync.Mutex
	lifetime context.Context // nil before the Handler runs
	closed   bool            // no stream is admitted any more
	perVM    map[types.UID]int
	perUser  map[string]int
	// perNamespace is needed beside perUser: an editor of a namespace can create any number of ServiceAccounts there.
	perNamespace map[string]int
	total        int
	all          sync.WaitGroup
}

// newAdmission allows one user a quarter of all streams, and the VirtualMachines of one namespace three quarters, so
// that no user and no namespace can take all streams.
func newAdmission(perVM, total int) admission {
	return admission{
		maxPerVM: perVM, maxPerUser: max(perVM, total/4), maxPerNamespace: max(perVM, 3*total/4), maxTotal: total,
		perVM: map[types.UID]int{}, perUser: map[string]int{}, perNamespace: map[string]int{},
	}
}

// open lets streams begin until lifetime ends.
func (a *admission) open(lifetime context.Context) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lifetime = lifetime
}

// awaitStreams waits for the streams to end, after lifetime has ended.
func (a *admission) awaitStreams() {
	a.mu.Lock()
	a.closed = true // so that no stream is added to a.all during Wait
	a.mu.Unlock()
	a.all.Wait()
}

// admitStream counts a stream until exit is called. The caller must end the stream when lifetime ends.
func (a *admission) admitStream(uid types.UID, namespace, user string) (lifetime context.Context, exit func(), err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.lifetime == nil:
		return nil, nil, ErrStarting
	case a.closed || a.lifetime.Err() != nil:
		return nil, nil, errStopping
	case a.perVM[uid] >= a.maxPerVM:
		return nil, nil, tooManyError("this VirtualMachine has %d open streams, the most that --streams-per-vm of the controller allows", a.maxPerVM)
	case a.total >= a.maxTotal:
		return nil, nil, tooManyError("this controller has %d open streams, the most that its --streams-max allows", a.maxTotal)
	case a.perNamespace[namespace] >= a.maxPerNamespace:
		return nil, nil, tooManyError("namespace %s has %d open streams, the most that --streams-max of the controller allows one namespace", namespace, a.maxPerNamespace)
	case a.perUser[user] >= a.maxPerUser:
		return nil, nil, tooManyError("user %.200q has %d open streams, the most that --streams-max of the controller allows one user", user, a.maxPerUser)
	}
	a.perVM[uid]++
	a.perUser[user]++
	a.perNamespace[namespace]++
	a.total++
	a.all.Add(1)
	return a.lifetime, func() { a.dropStream(uid, namespace, user) }, nil
}

func (a *admission) dropStream(uid types.UID, namespace, user string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.total--
	if a.perVM[uid]--; a.perVM[uid] == 0 {
		delete(a.perVM, uid)
	}
	if a.perUser[user]--; a.perUser[user] == 0 {
		delete(a.perUser, user)
	}
	if a.perNamespace[namespace]--; a.perNamespace[namespace] == 0 {
		delete(a.perNamespace, namespace)
	}
	a.all.Done()
}

func tooManyError(format string, args ...any) error {
	return newStatusError(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, format, args...)
}
