// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package users

import (
	"maps"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/test/framework/rules"
)

// Log records what users requested. Its zero value is empty.
type Log struct {
	mu        sync.Mutex
	requested map[types.UID]rules.Requested
}

func (l *Log) updateRequest(uid types.UID, change func(*rules.Requested)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.requested == nil {
		l.requested = map[types.UID]rules.Requested{}
	}
	requested := l.requested[uid]
	change(&requested)
	l.requested[uid] = requested
}

// Requested returns what was requested until now, by the VirtualMachine's UID.
func (l *Log) Requested() map[types.UID]rules.Requested {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.requested)
}
