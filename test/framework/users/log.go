// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package users

import (
	"maps"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/test/framework/rules"
)

// Requested is what users requested for one VirtualMachine.
type Requested = rules.Requested

// Log records what users requested. Its zero value is empty.
type Log struct {
	mu        sync.Mutex
	requested map[types.UID]Requested
}

func (l *Log) update(uid types.UID, change func(*Requested)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.requested == nil {
		l.requested = map[types.UID]Requested{}
	}
	requested := l.requested[uid]
	change(&requested)
	l.requested[uid] = requested
}

// NameOf returns the VirtualMachine of a server.
func (l *Log) NameOf(uid types.UID) (string, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	requested, ok := l.requested[uid]
	return requested.Name, ok
}

// Requested returns what was requested until now, by the VirtualMachine's UID.
func (l *Log) Requested() map[types.UID]Requested {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.requested)
}
