// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package shares bounds how much of a host the machines of one namespace may have, so that no namespace takes the room of
// all others. A share bounds what is added: machines that run and disks that exist stay when a share is lowered.
//
// Start with Account. limits.go has the limits that an operator sets.
package shares

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/kit"
)

// Resource is a resource of a host that namespaces share.
type Resource int

// The resources. Memory and disks are in bytes, CPUs in thousandths.
const (
	Memory Resource = iota
	CPU
	Disk
	resources
)

// Amounts has an amount of each resource.
type Amounts [resources]int64

// raise raises each amount to the other one, if that is larger.
func (a *Amounts) raise(to Amounts) {
	for r := range a {
		a[r] = max(a[r], to[r])
	}
}

// Claim has the resources that a machine has, or asks for: memory and CPUs if it runs, and disks.
type Claim struct {
	UID       types.UID
	Namespace string
	Amounts   Amounts
}

// Account admits the claims of machines to the shares of their namespaces.
type Account struct {
	Limits Limits
	// Find returns the amounts of the host, zero where that is unknown, and the claims of its machines.
	Find func() (whole Amounts, machines []Claim, err error)

	mu sync.Mutex
	// pending has the claims that Find does not return yet.
	pending map[types.UID]Claim
}

// Take reserves what a machine claims until Release. A claim is for all that the machine will have of a resource, or zero
// for a resource of which the machine gets nothing more. Take fails with ErrExhausted if the share is too small.
func (a *Account) Take(want Claim) error {
	if a.Limits == (Limits{}) || want.Amounts == (Amounts{}) {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	whole, machines, err := a.Find()
	if err != nil {
		return err
	}
	for _, c := range a.pending {
		machines = append(machines, c)
	}
	if err := a.Limits.admit(want, whole, usedByOthers(want, machines)); err != nil {
		return err
	}
	if a.pending == nil {
		a.pending = map[types.UID]Claim{}
	}
	want.Amounts.raise(a.pending[want.UID].Amounts)
	a.pending[want.UID] = want
	return nil
}

// Release ends the reservations of a machine. From now on Find returns the resources that the machine has got.
func (a *Account) Release(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.pending, uid)
}

// usedByOthers returns what the other machines of a claim's namespace have. A machine with several claims has the largest.
func usedByOthers(want Claim, all []Claim) (used Amounts) {
	largest := map[types.UID]Amounts{}
	for _, c := range all {
		if c.Namespace == want.Namespace && c.UID != want.UID {
			amounts := largest[c.UID]
			amounts.raise(c.Amounts)
			largest[c.UID] = amounts
		}
	}
	for _, amounts := range largest {
		for r, amount := range amounts {
			used[r] += amount
		}
	}
	return used
}

// admit fails with ErrExhausted if a claim does not fit into the share beside what is used.
func (l Limits) admit(want Claim, whole, used Amounts) error {
	for r, amount := range want.Amounts {
		share := l[r].shareOf(whole[r])
		if amount == 0 || share == 0 || amount <= share-used[r] {
			continue
		}
		about := descriptions[r]
		return driver.Errorf(driver.ErrExhausted, "%s: needed %s%s; the namespace %s has %s in use of its share of %s (%s is %s)", about.field, about.exact(amount), about.with,
			want.Namespace, about.rounded(used[r]), about.rounded(share), about.flag, l[r])
	}
	return nil
}

// descriptions are the texts about each resource in errors.
var descriptions = [resources]struct {
	field, with, flag, example string
	valueOf                    func(*resource.Quantity) int64
	exact, rounded             func(int64) string
}{
	Memory: {"spec.resource.memory", " with QEMU, its supervisor and files", "--qemu-namespace-memory", "8Gi", (*resource.Quantity).Value, kit.FormatBytes, kit.FormatMegabytes},
	CPU:    {"spec.resource.cpu", "", "--qemu-namespace-cpus", "16", (*resource.Quantity).MilliValue, formatCPUs, formatCPUs},
	Disk:   {"spec.resource.rootDisk and spec.volumes", "", "--qemu-namespace-disk", "500Gi", (*resource.Quantity).Value, kit.FormatBytes, kit.FormatMegabytes},
}

func formatCPUs(milli int64) string {
	return fmt.Sprint(resource.NewMilliQuantity(milli, resource.DecimalSI))
}
