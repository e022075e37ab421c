// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
)

// locks serialises the calls that change one server. They hold only within this
// process: against another leader only the engine's own rules protect.
type locks struct {
	mu    sync.Mutex
	byUID map[types.UID]*lock
}

type lock struct {
	held  chan struct{}
	users int
}

// acquire waits for the UID's lock and returns the function that releases it.
func (l *locks) acquire(ctx context.Context, uid types.UID) (func(), error) {
	k := l.join(uid)
	select {
	case k.held <- struct{}{}:
		return func() { <-k.held; l.leave(uid, k) }, nil
	case <-ctx.Done():
		l.leave(uid, k)
		return nil, driver.Errorf(driver.ErrRetry, "another call for this server has not ended: %w", ctx.Err())
	}
}

func (l *locks) join(uid types.UID) *lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byUID == nil {
		l.byUID = map[types.UID]*lock{}
	}
	k := l.byUID[uid]
	if k == nil {
		k = &lock{held: make(chan struct{}, 1)}
		l.byUID[uid] = k
	}
	k.users++
	return k
}

func (l *locks) leave(uid types.UID, k *lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.users--; k.users == 0 {
		delete(l.byUID, uid)
	}
}
