// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package storequota

import (
	"fmt"
	"slices"
	"time"

	"cloudnative.tw/drover/standalone/internal/bytesize"
)

// CrowdedPercent is the part of the quota up to which everyone may write.
const CrowdedPercent = 80

// Above CrowdedPercent the rest of the quota is divided among the namespaces, so that none can
// take another's part. Up to full percent the part depends on the sizes of the namespaces, so
// that small ones can grow. Above that each namespace has an allowance, whatever its size, half
// of which is for updates that grow an object a little: in a namespace that is full, a VM can
// still be stopped and a Lease renewed.
const (
	full   = 95
	little = 1 << 10
	// clusterPart divides the quota: objects outside of namespaces, such as roles and namespaces
	// themselves, may have that part in addition to a share.
	clusterPart = 16
	// toCome is the number of further namespaces for which a share is kept.
	toCome = 4
	// smallChurn divides the quota: each namespace may replace that part, even while all
	// together replace more than they may.
	smallChurn = 64
)

// Write describes what a request is about to store.
type Write struct {
	Namespace string
	// Size is the size of the object afterwards, and Growth by how much it is larger than
	// the one before; the same for a new object.
	Size, Growth int64
	// IsUpdate is set if the object existed before.
	IsUpdate bool
	// IsVital is set for a write that must not wait for others of its namespace: an update of
	// a Lease, or one that removes a finalizer.
	IsVital bool
	// Ticket, if not nil, gets what is recorded. What it had is taken back: kube-apiserver tries
	// an update again that met another one.
	Ticket *Ticket
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
	if w.Ticket != nil {
		a.refundTicket(w.Ticket)
	}
	own := a.accountOf(w.Namespace)
	extra, refusal := a.checkSpace(own, w)
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
	a.addWrite(w.Namespace, max(0, w.Growth), churn)
	own.extra += extra
	if w.Ticket != nil {
		*w.Ticket = Ticket{namespace: w.Namespace, growth: max(0, w.Growth), churn: churn, extra: extra}
	}
	return nil
}

// RecordDeletion records that an object is about to be deleted, which is never refused.
func (a *Accounts) RecordDeletion(namespace string, size int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rotateChurn()
	a.addWrite(namespace, 0, size)
}

// checkSpace refuses growth of namespaces that have more than their share of a crowded store
// and have used their allowance. extra is how much of the allowance the write takes.
func (a *Accounts) checkSpace(own *account, w Write) (extra int64, refusal *Refusal) {
	total := a.sum.bytes() + w.Growth
	if w.Growth <= 0 || total <= a.percentOfQuota(CrowdedPercent) {
		return 0, nil
	}
	share := a.share()
	if w.Namespace == "" {
		share += a.quota / clusterPart
	}
	if own.lasting()+w.Growth <= share {
		return 0, nil
	}
	allowance, isLittle := a.allowance(), w.IsUpdate && w.Growth <= little
	if isLittle && own.extra+w.Growth <= allowance || own.extra+w.Growth <= allowance/2 && total <= a.quota {
		return w.Growth, nil
	}
	return 0, &Refusal{Message: fmt.Sprintf(
		"%s has %s. All objects have %s of the %s that --store-quota of drover up allows: above %s, it may grow only while it has less than %s. Delete objects that are not needed, which is always possible, or start Drover with a larger --store-quota",
		nameOf(w.Namespace), bytesize.Format(own.bytes()), bytesize.Format(a.sum.bytes()), bytesize.Format(a.quota), bytesize.Format(a.percentOfQuota(CrowdedPercent)), bytesize.Format(share))}
}

// share returns how much a namespace may have in a crowded store: what those with more than
// that leave below full, divided by the number of the others and some that are to come.
// Only further namespaces make it smaller, since nobody grows beyond it.
func (a *Accounts) share() int64 {
	sizes := make([]int64, toCome, toCome+len(a.accounts))
	for name, x := range a.accounts {
		size := x.lasting()
		if name == "" {
			size = max(0, size-a.quota/clusterPart)
		}
		sizes = append(sizes, size)
	}
	slices.Sort(sizes)
	left := a.percentOfQuota(full) - a.quota/clusterPart
	for i, size := range slices.Backward(sizes) {
		if share := left / int64(i+1); size <= share {
			return share
		}
		left -= size
	}
	return 0
}

// allowance returns by how much each namespace may grow beyond its share.
func (a *Accounts) allowance() int64 {
	return (a.quota - a.percentOfQuota(full)) / int64(len(a.accounts)+toCome)
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
		"%s has replaced or deleted %s within %d s, and all namespaces %s: together they may replace %s, and beyond each may replace %s. Write less often, or try again in a minute",
		nameOf(w.Namespace), bytesize.Format(own.churnBytes()), int(2*churnPeriod/time.Second), bytesize.Format(a.sum.churnBytes()), bytesize.Format(a.quota), bytesize.Format(a.quota/smallChurn))}
}

func (a *Accounts) percentOfQuota(part int64) int64 { return a.quota / 100 * part }

// nameOf returns the name of an account for people.
func nameOf(namespace string) string {
	if namespace == "" {
		return "the cluster (objects outside of namespaces)"
	}
	return "namespace " + namespace
}
