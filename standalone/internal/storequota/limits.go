// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package storequota

import (
	"fmt"

	"cloudnative.tw/drover/standalone/internal/bytesize"
)

// CrowdedPercent is the part of the quota up to which everyone may write.
const CrowdedPercent = 80

// Further marks of the quota, in percent. Above CrowdedPercent a namespace may grow while it
// has at most a quarter of what is left below full: so the largest ones stop first, and the
// more is taken, the smaller a namespace has to be to go on. An update may grow an object a
// little up to tight: who has filled a namespace can still stop a VM, hand over a Lease or
// remove a finalizer.
const (
	tight  = 85
	full   = 90
	little = 1 << 10
	// room divides what is left into the part that one namespace may have.
	room = 4
	// smallChurn divides the quota into the part that each namespace may replace even while
	// others replace more than all may together.
	smallChurn = 64
)

// Write is what a request is about to store.
type Write struct {
	Namespace string
	// Size is the size of the object afterwards, and Growth by how much it is larger than
	// the one before; the same for a new object.
	Size, Growth int64
	// IsUpdate is set if the object existed before.
	IsUpdate bool
	// IsVital is set for what must not wait for other writes of its namespace: an update of
	// a Lease, or one that removes a finalizer.
	IsVital bool
}

// Refusal says why a write may not be stored.
type Refusal struct {
	Message string
	// IsPassing is set if the same write may succeed some seconds later.
	IsPassing bool
}

// Admit decides whether something may be written, and records it if so.
func (a *Accounts) Admit(w Write) *Refusal {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rotateChurn()
	own := a.accounts[w.Namespace]
	if own == nil {
		own = &account{}
	}
	refusal := a.checkSpace(own, w)
	if refusal == nil {
		refusal = a.checkChurn(own, w)
	}
	if refusal != nil {
		a.refused++
		return refusal
	}
	churn := int64(0)
	if w.IsUpdate {
		churn = w.Size
	}
	a.add(w.Namespace, max(0, w.Growth), churn)
	return nil
}

// RecordDeletion records that an object is about to be deleted, which is never refused.
func (a *Accounts) RecordDeletion(namespace string, size int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rotateChurn()
	a.add(namespace, 0, size)
}

// checkSpace refuses growth of namespaces that have more than their share of a crowded store.
func (a *Accounts) checkSpace(own *account, w Write) *Refusal {
	total, mark := a.sum.bytes(), a.percent(CrowdedPercent)
	if w.IsUpdate && w.Growth <= little {
		mark = a.percent(tight)
	}
	if w.Growth <= 0 || total+w.Growth <= mark {
		return nil
	}
	share := max(0, a.percent(full)-total) / room
	if own.bytes()+w.Growth <= share {
		return nil
	}
	return &Refusal{Message: fmt.Sprintf(
		"%s %s, and all objects have %s of the %s that the API's store may hold: above %s only namespaces with less than %s may grow; delete objects that are not needed, which is always possible",
		nameOf(w.Namespace), bytesize.Format(own.bytes()), bytesize.Format(total), bytesize.Format(a.quota), bytesize.Format(a.percent(CrowdedPercent)), bytesize.Format(share))}
}

// checkChurn refuses writes while too many objects were replaced lately: each replaced object
// stays in memory for a minute, and in etcd until the next compaction.
func (a *Accounts) checkChurn(own *account, w Write) *Refusal {
	most := a.quota
	if w.IsVital {
		most *= 2
	}
	if a.sum.churnBytes()+w.Size <= most || own.churnBytes()+w.Size <= a.quota/smallChurn {
		return nil
	}
	return &Refusal{IsPassing: true, Message: fmt.Sprintf(
		"%s replaced and deleted lately, and all together %s, where the API's store may hold %s: write less often, or wait for a minute",
		nameOf(w.Namespace)+" "+bytesize.Format(own.churnBytes()), bytesize.Format(a.sum.churnBytes()), bytesize.Format(a.quota))}
}

func (a *Accounts) percent(part int64) int64 { return a.quota / 100 * part }

// nameOf returns the owner of an account, with its verb.
func nameOf(namespace string) string {
	if namespace == "" {
		return "objects outside of namespaces have"
	}
	return "namespace " + namespace + " has"
}
