// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"fmt"
	"net"
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
)

func testDial(t *testing.T, e *Env) {
	d := optional[driver.Dialer](t, e.Driver)
	Require(t, e.Guest.Talk != nil, "Guest.Talk")
	spec, _ := e.Start(t, "dial")
	for range 2 {
		var conn net.Conn
		assert.Eventually(t, "the port to accept a connection", func(testing.TB) (err error) {
			conn, err = d.Dial(t.Context(), spec.UID, e.Guest.Port)
			return err
		})
		e.Guest.Talk(t, conn)
		_ = conn.Close() // Talk may have closed it
	}
	for port, want := range map[int32]error{e.Guest.DeadPort: driver.ErrRetry, 0: driver.ErrInvalid, -1: driver.ErrInvalid, 65536: driver.ErrInvalid} {
		assert.ErrorIs(t, fmt.Sprintf("Dial of port %d", port), assert.ErrorOf(d.Dial(t.Context(), spec.UID, port)), want)
	}
}

func testInterfaces(t *testing.T, e *Env) {
	d := optional[driver.InterfaceLister](t, e.Driver)
	spec, _ := e.Start(t, "interfaces")
	all, err := d.Interfaces(t.Context(), spec.UID)
	assert.NoError(t, err)
	addresses := 0
	for _, i := range all {
		if _, err := net.ParseMAC(i.MAC); i.Name == "" || err != nil {
			t.Errorf("an interface has the name %q and the address %q: %v", i.Name, i.MAC, err)
		}
		for _, a := range i.Addresses {
			if addresses++; !a.IsValid() || a.Addr().IsLoopback() {
				t.Errorf("interface %s has the address %v", i.Name, a)
			}
		}
	}
	assert.True(t, addresses != 0, "no interface has an address: %+v", all)
}
