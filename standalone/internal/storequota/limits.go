// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package storequota

import (
	"fmt"
	"slices"
	"time"

	"cloudnative.tw/drover/standalone/internal/bytesize"
)

// CrowdedPercent is the percentage of the quota up to which every namespace may write.
const CrowdedPercent = 80

// Above CrowdedPercent the rest of the quota is divided among the namespaces, so that no namespace
// can use the part of another. Up to fullPercent, a namespace's share depends on the sizes of the
// namespaces, so that small namespaces can grow. The rest is divided into equal allowances, half of
// each for updates by at most smallGrowth. So in a full namespace a VM can still be stopped and a
// Lease renewed.
const (
	fullPercent = 95
	smallGrowth = 1 << 10
	// clusterPart says that cluster-scoped objects, such as roles and namespaces, may have
	// 1/clusterPart of the quota in addition to a share.
	clusterPart = 16
	// reservedShares is the number of further namespaces for which a share is kept.
	reservedShares = 4
	// churnPart says that each namespace may replace 1/churnPart of the quota, even while all
	// namespaces together replace more than they may.
	churnPart = 64
)

// Write describes a request that is about to store an object.
type Write struct {
	Namespace string
	// Size is the size of the object after the write. Growth is how much larger the write makes the
	// object; for a new object it is Size.
	Size, Growth int64
	// IsUpdate is set if the object existed before.
	IsUpdate bool
	// IsVital is set for a write that must not wait for other writes of its namespace: an update of
	// a Lease, or an update that removes a finalizer.
	IsVital bool
	// Ticket, if not nil, gets the recorded amounts. Admit first subtracts the amounts that it had:
	// kube-apiserver repeats an update after a conflict.
	Ticket *Ticket
}

// Refusal says why a write may not be stored.
type Refusal struct {
	Message string
	// IsTemporary is set if the same write may succeed some seconds later.
	IsTemporary bool
}

// Admit decides whether an object may be written, and records the write if it may.
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

// RecordDeletion records that an object is about to be deleted. Deletions are never refused.
func (a *Accounts) RecordDeletion(namespace string, size int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rotateChurn()
	a.addWrite(namespace, 0, size)
}

// checkSpace refuses a write if the store is crowded, and the namespace has more than its share and
// has used its allowance. extra is how much of the allowance the write uses.
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
	allowance, isSmall := a.allowance(), w.IsUpdate && w.Growth <= smallGrowth
	if isSmall && own.extra+w.Growth <= allowance || own.extra+w.Growth <= allowance/2 && total <= a.quota {
		return w.Growth, nil
	}
	return 0, &Refusal{Message: fmt.Sprintf(
		"%s has %s. All objects have %s of the %s that --store-quota of drover up allows: above %s, it may grow only while it has less than %s. Delete objects that are not needed, which is always possible, or start Drover with a larger --store-quota",
		nameOf(w.Namespace), bytesize.Format(own.bytes()), bytesize.Format(a.sum.bytes()), bytesize.Format(a.quota), bytesize.Format(a.percentOfQuota(CrowdedPercent)), bytesize.Format(share))}
}

// share returns how many bytes a namespace may have in a crowded store. The space up to fullPercent, less
// the namespaces that have more than a share, is divided evenly among the other namespaces and
// reservedShares. Since no namespace grows beyond the share, only new namespaces make it smaller.
func (a *Accounts) share() int64 {
	sizes := make([]int64, reservedShares, reservedShares+len(a.accounts))
	for name, x := range a.accounts {
		size := x.lasting()
		if name == "" {
			size = max(0, size-a.quota/clusterPart)
		}
		sizes = append(sizes, size)
	}
	slices.Sort(sizes)
	left := a.percentOfQuota(fullPercent) - a.quota/clusterPart
	for i, size := range slices.Backward(sizes) {
		if share := left / int64(i+1); size <= share {
			return share
		}
		left -= size
	}
	return 0
}

// allowance returns by how many bytes each namespace may grow beyond its share.
func (a *Accounts) allowance() int64 {
	return (a.quota - a.percentOfQuota(fullPercent)) / int64(len(a.accounts)+reservedShares)
}

// checkChurn refuses writes while too many bytes were replaced lately: a replaced object stays in
// memory for a minute, and in etcd until the next compaction.
func (a *Accounts) checkChurn(own *account, w Write) *Refusal {
	limit := a.quota
	if w.IsVital {
		limit *= 2
	}
	if a.sum.churnBytes()+w.Size <= limit || own.churnBytes()+w.Size <= a.quota/churnPart {
		return nil
	}
	return &Refusal{IsTemporary: true, Message: fmt.Sprintf(
		"%s has replaced or deleted %s within %d s, and all namespaces together %s: together they may replace %s, and each may always replace %s. Write less often, or try again in a minute",
		nameOf(w.Namespace), bytesize.Format(own.churnBytes()), int(2*churnPeriod/time.Second), bytesize.Format(a.sum.churnBytes()), bytesize.Format(a.quota), bytesize.Format(a.quota/churnPart))}
}

func (a *Accounts) percentOfQuota(percent int64) int64 { return a.quota / 100 * percent }

// nameOf describes an account in messages.
func nameOf(namespace string) string {
	if namespace == "" {
		return "the cluster (cluster-scoped objects)"
	}
	return "namespace " + namespace
}
