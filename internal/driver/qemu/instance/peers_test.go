// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"errors"
	"net/netip"
	"os"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver/qemu/addresses"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/driver/statedir"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/test/assert"
)

// peersHost is a host whose machines do not run: a connection that is allowed fails in another way.
func peersHost(t *testing.T) *Host {
	t.Helper()
	dir, err := statedir.Open("the folder", t.TempDir(), VMsDir, RetainedDir, EndsDir, AddressesDir)
	assert.NoError(t, err)
	h := NewHost(Config{ClusterID: "cluster-1", Clock: clock.RealClock{}, Log: logr.Discard()}, dir)
	h.Addresses = &addresses.Pool{
		Range: netip.MustParsePrefix("10.1.2.0/24"), Dir: dir.Path(AddressesDir),
		IsGone: func(uid types.UID) bool { return h.InstanceOf(uid).IsGone() },
	}
	return h
}

// addMachine records a machine that has an address.
func addMachine(t *testing.T, h *Host, namespace, name string) *Instance {
	t.Helper()
	inst := h.InstanceOf(uuid.NewUUID())
	address, err := h.Addresses.Take(inst.UID, netip.Prefix{})
	assert.NoError(t, err)
	inst.Record = record.Record{Format: record.Format, ClusterID: h.ClusterID, UID: inst.UID, ID: NewID(), Namespace: namespace, Name: name, Address: address}
	assert.NoError(t, errors.Join(os.Mkdir(inst.Path, 0o700), inst.Save()))
	return inst
}

// TestSwitchboard checks whom a machine finds and reaches: those of its namespace, as long as its address is its own.
func TestSwitchboard(t *testing.T) {
	t.Parallel()
	h := peersHost(t)
	a, b, c := addMachine(t, h, "ns", "a"), addMachine(t, h, "ns", "b"), addMachine(t, h, "other", "c")
	s := switchboard{a, h}
	for name, want := range map[string]*Instance{"b": b, "b.ns": b, "c": nil, "c.other": nil, "d": nil, "b.ns.x": nil} {
		address, err := s.Lookup(t.Context(), name)
		if want == nil {
			assert.ErrorIs(t, name, err, control.ErrNoMachine)
		} else if address != want.Address.Addr() {
			t.Errorf("%s is %s, %v, want %s", name, address, err, want.Address)
		}
	}
	dial := func(to *Instance) error {
		socket, err := s.Dial(t.Context(), control.TCP, 4000, netip.AddrPortFrom(to.Address.Addr(), 80))
		if err == nil {
			return errors.Join(errors.New("a machine that does not run was reached"), socket.Close())
		}
		return err
	}
	if err := dial(b); err == nil || errors.Is(err, control.ErrNoMachine) {
		t.Errorf("a machine of its namespace is refused: %v", err)
	}
	assert.ErrorIs(t, "a machine of another namespace", dial(c), control.ErrNoMachine)
	assert.ErrorIs(t, "itself", dial(a), control.ErrNoMachine)
	h.Addresses.Release(a.UID, a.Address.Addr())
	assert.ErrorIs(t, "after its release", dial(b), control.ErrNoMachine)
	other := addMachine(t, h, "ns", "e")
	h.Addresses.Release(other.UID, other.Address.Addr())
	_, err := h.Addresses.Take(other.UID, a.Address)
	assert.NoError(t, err)
	assert.ErrorIs(t, "while another has its address", dial(b), control.ErrNoMachine)
}
