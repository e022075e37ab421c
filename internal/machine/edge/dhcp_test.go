// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"bytes"
	"net"
	"net/netip"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/test/assert"
)

// TestLease checks the lease that a guest gets.
func TestLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	discovery, err := dhcpv4.NewDiscovery(w.MAC, dhcpv4.WithHwAddr(w.MAC))
	assert.NoError(t, err)
	w.guest.sendDHCP(discovery)
	offer, err := dhcpv4.FromBytes(assert.Receive(t, "an offer", w.guest.leases))
	assert.NoError(t, err)
	checkLease(t, offer, dhcpv4.MessageTypeOffer, w.NetworkConfig)
	request, err := dhcpv4.NewRequestFromOffer(offer)
	assert.NoError(t, err)
	w.guest.sendDHCP(request)
	lease, err := dhcpv4.FromBytes(assert.Receive(t, "a lease", w.guest.leases))
	assert.NoError(t, err)
	checkLease(t, lease, dhcpv4.MessageTypeAck, w.NetworkConfig)
	assert.True(t, lease.TransactionID == request.TransactionID && bytes.Equal(lease.ClientHWAddr, w.MAC), "the lease is for another client: %s", lease.Summary())
}

// checkLease checks a message with the guest's lease.
func checkLease(t *testing.T, m *dhcpv4.DHCPv4, kind dhcpv4.MessageType, c control.NetworkConfig) {
	t.Helper()
	length, _ := m.SubnetMask().Size()
	mtu, err := dhcpv4.GetUint16(dhcpv4.OptionInterfaceMTU, m.Options)
	gateway := net.IP(c.Gateway().AsSlice())
	if m.MessageType() != kind || !m.YourIPAddr.Equal(c.Address.Addr().AsSlice()) || length != c.Address.Bits() || err != nil || int(mtu) != c.MTU ||
		len(m.Router()) != 1 || !m.Router()[0].Equal(gateway) || len(m.DNS()) != 1 || !m.DNS()[0].Equal(gateway) ||
		m.DomainName() != c.Domain || m.HostName() != c.Hostname || m.IPAddressLeaseTime(0).Seconds() != leaseForever {
		t.Errorf("want %s of %+v, got %s", kind, c, m.Summary())
	}
}

// TestAnswers checks the types of the answers to a client.
func TestAnswers(t *testing.T) {
	t.Parallel()
	c := control.NetworkConfig{MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, Address: netip.MustParsePrefix("10.0.0.9/24"), MTU: 1500, Hostname: "vm"}
	server, own := net.IP{10, 0, 0, 1}, net.IP{10, 0, 0, 9}
	message := func(kind dhcpv4.MessageType, modifiers ...dhcpv4.Modifier) []byte {
		m, err := dhcpv4.New(append(modifiers, dhcpv4.WithMessageType(kind), dhcpv4.WithHwAddr(c.MAC))...)
		assert.NoError(t, err)
		return m.ToBytes()
	}
	wants := func(address net.IP) dhcpv4.Modifier {
		return dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(address))
	}
	takes := func(server net.IP) dhcpv4.Modifier {
		return dhcpv4.WithOption(dhcpv4.OptServerIdentifier(server))
	}
	for name, c2 := range map[string]struct {
		packet []byte
		want   dhcpv4.MessageType // MessageTypeNone for no answer
	}{
		"a discovery":                {message(dhcpv4.MessageTypeDiscover), dhcpv4.MessageTypeOffer},
		"a request":                  {message(dhcpv4.MessageTypeRequest, wants(own), takes(server)), dhcpv4.MessageTypeAck},
		"a request after a restart":  {message(dhcpv4.MessageTypeRequest, wants(own)), dhcpv4.MessageTypeAck},
		"a renewal":                  {message(dhcpv4.MessageTypeRequest, dhcpv4.WithClientIP(own)), dhcpv4.MessageTypeAck},
		"a renewal of another one":   {message(dhcpv4.MessageTypeRequest, dhcpv4.WithClientIP(net.IP{10, 0, 0, 10})), dhcpv4.MessageTypeNak},
		"another address":            {message(dhcpv4.MessageTypeRequest, wants(net.IP{10, 0, 0, 10})), dhcpv4.MessageTypeNak},
		"another server":             {message(dhcpv4.MessageTypeRequest, wants(own), takes(own)), dhcpv4.MessageTypeNone},
		"a question for the rest":    {message(dhcpv4.MessageTypeInform), dhcpv4.MessageTypeAck},
		"an offer":                   {message(dhcpv4.MessageTypeOffer), dhcpv4.MessageTypeNone},
		"a message without a type":   {message(dhcpv4.MessageTypeNone), dhcpv4.MessageTypeNone},
		"a message of a server":      {message(dhcpv4.MessageTypeDiscover, func(m *dhcpv4.DHCPv4) { m.OpCode = dhcpv4.OpcodeBootReply }), dhcpv4.MessageTypeNone},
		"a packet without an option": {make([]byte, 240), dhcpv4.MessageTypeNone},
		"half a packet":              {message(dhcpv4.MessageTypeDiscover)[:200], dhcpv4.MessageTypeNone},
	} {
		answer, _ := leaseAddress(c2.packet, c)
		switch {
		case answer == nil || c2.want == dhcpv4.MessageTypeNone:
			assert.True(t, answer == nil && c2.want == dhcpv4.MessageTypeNone, "%s: the answer is %v", name, answer)
		case c2.want == dhcpv4.MessageTypeNak:
			assert.True(t, answer.MessageType() == dhcpv4.MessageTypeNak && answer.YourIPAddr.IsUnspecified(), "%s: the answer is %s", name, answer.Summary())
		default:
			checkLease(t, answer, c2.want, c)
		}
	}
}

// FuzzDHCP checks that no packet of a guest breaks its edge, or leases another address.
func FuzzDHCP(f *testing.F) {
	c := control.NetworkConfig{MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, Address: netip.MustParsePrefix("10.0.0.9/24"), MTU: 1500, Hostname: "vm"}
	discovery, err := dhcpv4.NewDiscovery(c.MAC)
	assert.NoError(f, err)
	f.Add(discovery.ToBytes())
	f.Fuzz(func(t *testing.T, packet []byte) {
		answer, err := leaseAddress(packet, c)
		if err != nil || answer == nil {
			return
		}
		own := c.Address.Addr().AsSlice()
		assert.True(t, answer.MessageType() == dhcpv4.MessageTypeNak || answer.YourIPAddr.Equal(own), "it leases %s", answer.YourIPAddr)
		assert.True(t, len(answer.ToBytes()) <= c.MTU-28, "the answer has %d bytes", len(answer.ToBytes()))
	})
}
