// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
)

// remembered is what a driver remembers of servers beside their records. What a released
// server must not share with a later one of its UID is by directory.
type remembered struct {
	// ReportedExits holds the last run whose exit was reported to a caller.
	ReportedExits driver.SyncMap[types.UID, string]
	// UnwrittenExits holds, by file, the exits that could not be written for lack of space.
	UnwrittenExits driver.SyncMap[string, driver.Exit]
}

// ForgetMissing removes what is remembered of servers that a complete list did not find,
// whichever process removed them.
func (r *remembered) ForgetMissing(found []*Instance) {
	exists := map[types.UID]bool{}
	for _, inst := range found {
		exists[inst.UID] = true
	}
	deleteMissing(&r.ReportedExits, exists)
	deleteMissing(&r.UnwrittenExits, exists)
}

// deleteMissing deletes the entries of servers that do not exist. A key is a UID, or a path
// whose last part begins with one.
func deleteMissing[K ~string, V any](m *driver.SyncMap[K, V], exists map[types.UID]bool) {
	m.DeleteFunc(func(key K, _ V) bool { return !exists[UIDOf(string(key))] })
}
