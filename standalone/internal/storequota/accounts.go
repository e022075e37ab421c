// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package storequota divides the space of the API's store among namespaces, so that a user
// who fills one namespace cannot stop the others.
//
// Start with Accounts, which counts the bytes of each namespace. limits.go decides whether a
// write is allowed, admission.go calls limits.go inside kube-apiserver, and refund.go
// subtracts writes that were admitted but not stored.
package storequota

import (
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Accounts counts the bytes that each namespace stores. Cluster-scoped objects share the
// account "". Counts of the store correct the accounts. Between two counts each admitted write
// is added, so that a burst of writes cannot exceed the limits.
type Accounts struct {
	quota      int64
	clock      clock.PassiveClock
	heavyLoads chan struct{}

	mu       sync.Mutex
	accounts map[string]*account
	sum      account
	added    int64     // bytes added since the last count began
	turn     time.Time // when the current churn period began
	refused  int64     // the number of refused writes
}

// account has the numbers of bytes of a namespace: of its objects, in four parts, and of churn.
type account struct {
	stored   int64 // found by the last count
	late     int64 // admitted before the last count began, but not found by it
	counting int64 // admitted before the running count began
	fresh    int64 // admitted since the last count began
	// extra is the part of these bytes that was admitted beyond the account's share.
	extra int64
	// churn is the size of the content that updates and deletions have replaced, in the current and in the
	// previous period. The content stays for a while as history in etcd and in the caches of kube-apiserver.
	churn [2]int64
}

func (a *account) bytes() int64      { return a.stored + a.late + a.counting + a.fresh }
func (a *account) lasting() int64    { return max(0, a.bytes()-a.extra) }
func (a *account) churnBytes() int64 { return a.churn[0] + a.churn[1] }

// churnPeriod is the length of a period. Two periods are longer than the 75 s for which
// kube-apiserver keeps the events of its watches in memory.
const churnPeriod = 45 * time.Second

// NewAccounts returns accounts that share quota bytes. They are empty until the first count.
func NewAccounts(quota int64, c clock.PassiveClock) *Accounts {
	return &Accounts{
		quota: quota, clock: c, heavyLoads: make(chan struct{}, 1),
		accounts: map[string]*account{}, turn: c.Now(),
	}
}

// Quota returns the bytes that all objects together may have.
func (a *Accounts) Quota() int64 { return a.quota }

// HeavyLoads returns a channel that receives a value when so much was written since the last count that
// the next count should begin earlier.
func (a *Accounts) HeavyLoads() <-chan struct{} { return a.heavyLoads }

// changeAccount applies f to an account and to the sum of all accounts.
func (a *Accounts) changeAccount(namespace string, f func(*account)) {
	f(a.accountOf(namespace))
	f(&a.sum)
}

// accountOf returns the account of a namespace, and creates it if necessary. EndCount removes empty accounts.
func (a *Accounts) accountOf(namespace string) *account {
	own := a.accounts[namespace]
	if own == nil {
		own = &account{}
		a.accounts[namespace] = own
	}
	return own
}

// addWrite records bytes of objects and of churn that are about to be written.
func (a *Accounts) addWrite(namespace string, growth, churn int64) {
	a.changeAccount(namespace, func(x *account) {
		x.fresh += growth
		x.churn[0] += churn
	})
	const part = 32
	if a.added += growth + churn; a.added > a.quota/part {
		select {
		case a.heavyLoads <- struct{}{}:
		default:
		}
	}
}

// rotateChurn begins a new period when the current one is over.
func (a *Accounts) rotateChurn() {
	passed := a.clock.Since(a.turn)
	if passed < churnPeriod {
		return
	}
	a.turn = a.clock.Now()
	rotate := func(x *account) {
		x.churn = [2]int64{0, x.churn[0]}
		if passed >= 2*churnPeriod {
			x.churn = [2]int64{}
		}
	}
	rotate(&a.sum)
	for _, x := range a.accounts {
		rotate(x)
	}
}

// BeginCount is called before the store is counted.
func (a *Accounts) BeginCount() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.added = 0
	begin := func(x *account) { x.counting, x.fresh = x.counting+x.fresh, 0 }
	begin(&a.sum)
	for _, x := range a.accounts {
		begin(x)
	}
}

// EndCount replaces the stored bytes by counted bytes. A write that was admitted before the count, and that
// the count does not show, may not have reached the store yet. It stays in the account until the next count.
func (a *Accounts) EndCount(counted map[string]int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rotateChurn()
	for namespace := range counted {
		a.accountOf(namespace)
	}
	a.sum = account{}
	for namespace, x := range a.accounts {
		// Deleted bytes no longer use up the allowance.
		x.extra = max(0, x.extra-max(0, x.stored-counted[namespace]))
		x.late = min(x.counting, max(0, x.stored+x.counting-counted[namespace]))
		x.stored, x.counting = counted[namespace], 0
		if *x == (account{}) {
			delete(a.accounts, namespace)
		}
		a.sum.addAccount(x)
	}
	if a.sum.bytes() <= a.percentOfQuota(CrowdedPercent) {
		for _, x := range a.accounts {
			x.extra = 0
		}
	}
}

func (a *account) addAccount(x *account) {
	a.stored += x.stored
	a.late += x.late
	a.counting += x.counting
	a.fresh += x.fresh
	a.churn[0] += x.churn[0]
	a.churn[1] += x.churn[1]
}

// NamespaceUsage is the size of the objects of a namespace. The name is empty for objects outside of
// namespaces.
type NamespaceUsage struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
}

// Largest returns the bytes of all namespaces together, the number of refused writes since the
// start, and the bytes of the n largest namespaces.
func (a *Accounts) Largest(n int) (total, refused int64, largest []NamespaceUsage) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range slices.SortedFunc(maps.Keys(a.accounts), func(x, y string) int {
		return int(a.accounts[y].bytes() - a.accounts[x].bytes())
	}) {
		if len(largest) < n {
			largest = append(largest, NamespaceUsage{Name: name, Bytes: a.accounts[name].bytes()})
		}
	}
	return a.sum.bytes(), a.refused, largest
}
