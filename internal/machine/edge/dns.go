// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/failure"
)

const (
	// nameTTL is how long a guest may keep a machine's address, in seconds.
	nameTTL = 5
	// resolveWithin is how long a resolver of the outside may take.
	resolveWithin = 3 * time.Second
	// maxAnswer is the most that an answer by UDP has without a fragment.
	maxAnswer = 1232
)

// names answers the guest's queries for names.
type names struct{ edge *Edge }

// isDNS reports whether a packet is a query to the gateway by UDP.
func isDNS(ip header.IPv4, gateway netip.Addr) bool {
	udp := header.UDP(ip.Payload())
	return ip.TransportProtocol() == header.UDPProtocolNumber && !ip.More() && ip.FragmentOffset() == 0 && ip.DestinationAddress() == addressOf(gateway) &&
		len(udp) >= header.UDPMinimumSize && udp.DestinationPort() == control.DNSPort
}

// answerUDP answers a query by UDP. It is no flow that would last: a guest asks from another port each time.
func (n names) answerUDP(udp header.UDP) {
	if !n.edge.budget.takeName() {
		n.edge.noteRefusal("dns", n.edge.Gateway().String(), errNoMemory)
		return
	}
	port, query := udp.SourcePort(), bytes.Clone(udp.Payload())
	go func() {
		defer n.edge.budget.giveBackFlow()
		answer := n.resolve(query, control.UDP)
		if len(answer) > n.edge.MTU-header.IPv4MinimumSize-header.UDPMinimumSize {
			answer = truncateAnswer(answer)
		}
		if answer != nil {
			n.edge.link.sendUDP(netip.AddrPortFrom(n.edge.Gateway(), control.DNSPort), netip.AddrPortFrom(n.edge.Address.Addr(), port), answer)
		}
	}()
}

// truncateAnswer returns an answer that makes the guest ask by TCP, nil if it is broken.
func truncateAnswer(answer []byte) []byte {
	var p dnsmessage.Parser
	h, err := p.Start(answer)
	if err != nil {
		return nil
	}
	question, err := p.Question()
	if err != nil {
		return nil
	}
	h.Truncated = true
	truncated, _ := (&dnsmessage.Message{Header: h, Questions: []dnsmessage.Question{question}}).Pack()
	return truncated
}

// serveTCP returns a connection on whose other end names are resolved.
func (n names) serveTCP() net.Conn {
	guest, here := net.Pipe()
	go func() {
		defer func() { _ = here.Close() }()
		for {
			query, err := readQuery(here, control.TCP)
			if err != nil {
				return
			}
			answer := n.resolve(query, control.TCP)
			if answer == nil {
				continue
			}
			answer = append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...) //nolint:gosec // bounded
			if _, err := here.Write(answer); err != nil {
				return
			}
		}
	}()
	return guest
}

// readQuery reads a query, which has its length before it by TCP.
func readQuery(from net.Conn, protocol string) ([]byte, error) {
	query := make([]byte, flowPacket)
	if protocol == control.UDP {
		n, err := from.Read(query)
		return query[:n], err
	}
	var length [2]byte
	if _, err := io.ReadFull(from, length[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(length[:]))
	if n > len(query) {
		return nil, fmt.Errorf("a query of %d bytes: at most %d are allowed", n, len(query))
	}
	_, err := io.ReadFull(from, query[:n])
	return query[:n], err
}

// resolve returns the answer to a query, nil for none.
func (n names) resolve(query []byte, protocol string) []byte {
	var p dnsmessage.Parser
	h, err := p.Start(query)
	if err != nil || h.Response {
		return nil
	}
	question, err := p.Question()
	if err != nil || h.OpCode != 0 || question.Class != dnsmessage.ClassINET {
		return answerOf(h, nil, dnsmessage.RCodeNotImplemented)
	}
	name := strings.TrimSuffix(strings.ToLower(question.Name.String()), ".")
	if own, isMachine := strings.CutSuffix(name, "."+control.InternalDomain); isMachine {
		return n.answerMachine(h, question, own, true)
	}
	if strings.Count(name, ".") <= 1 {
		if answer := n.answerMachine(h, question, name, !strings.Contains(name, ".")); answer != nil {
			return answer
		}
	}
	if n.edge.getEgress().Deny {
		n.edge.noteRefusal("dns", name, ErrNoEgress)
		return answerOf(h, &question, dnsmessage.RCodeRefused)
	}
	return n.askOutside(h, question, protocol)
}

// answerMachine answers for the name of a machine. If there is none, it returns nil for a name that the resolvers of the
// outside may know, and an error to the guest for one that is ours.
func (n names) answerMachine(h dnsmessage.Header, q dnsmessage.Question, name string, isOurs bool) []byte {
	address, err := n.lookup(name)
	switch {
	case err != nil && !isOurs: // also while no Drover runs, which knows the machines
		return nil
	case errors.Is(err, failure.ErrNoMachine):
		return answerOf(h, &q, dnsmessage.RCodeNameError)
	case err != nil:
		return answerOf(h, &q, dnsmessage.RCodeServerFailure)
	case q.Type != dnsmessage.TypeA:
		return answerOf(h, &q, dnsmessage.RCodeSuccess)
	}
	return answerOf(h, &q, dnsmessage.RCodeSuccess, dnsmessage.Resource{
		Header: dnsmessage.ResourceHeader{Name: q.Name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET, TTL: nameTTL},
		Body:   &dnsmessage.AResource{A: address.As4()},
	})
}

func (n names) lookup(name string) (netip.Addr, error) {
	if name == n.edge.Hostname {
		return n.edge.Address.Addr(), nil
	}
	if n.edge.Peers == nil || name == "" {
		return netip.Addr{}, failure.ErrNoMachine
	}
	ctx, cancel := context.WithTimeout(n.edge.context, resolveWithin)
	defer cancel()
	address, err := n.edge.Peers.Lookup(ctx, name)
	if err == nil && !n.edge.Address.Masked().Contains(address) { // of another range, which leads elsewhere from here
		return netip.Addr{}, failure.ErrNoMachine
	}
	return address, err
}

// answerOf returns an answer without or with resources.
func answerOf(h dnsmessage.Header, q *dnsmessage.Question, code dnsmessage.RCode, resources ...dnsmessage.Resource) []byte {
	m := dnsmessage.Message{
		Header: dnsmessage.Header{
			ID: h.ID, Response: true, OpCode: h.OpCode, RecursionDesired: h.RecursionDesired, RecursionAvailable: true,
			Authoritative: len(resources) > 0, RCode: code,
		},
		Answers: resources,
	}
	if q != nil {
		m.Questions = []dnsmessage.Question{*q}
	}
	answer, err := m.Pack()
	if err != nil {
		return nil
	}
	return answer
}

// askOutside asks the operator's resolvers, one after another, with a question of its own: nothing else of what the
// guest sent leaves the host.
func (n names) askOutside(h dnsmessage.Header, q dnsmessage.Question, protocol string) []byte {
	for _, resolver := range n.edge.getEgress().Resolvers {
		if n.edge.getEgress().Deny { // since the one before was asked
			break
		}
		answer, err := n.exchange(q, protocol, resolver)
		if err != nil {
			continue
		}
		binary.BigEndian.PutUint16(answer, h.ID)
		return answer
	}
	return answerOf(h, &q, dnsmessage.RCodeServerFailure)
}

// exchange asks one resolver.
func (n names) exchange(q dnsmessage.Question, protocol string, resolver netip.AddrPort) ([]byte, error) {
	ctx, cancel := context.WithTimeout(n.edge.context, resolveWithin)
	defer cancel()
	id := uint16(rand.Uint32()) //nolint:gosec // of the system's random source
	query, err := queryOf(id, q)
	if err != nil {
		return nil, err
	}
	conn, err := n.edge.Dial(ctx, protocol, resolver.String())
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	if protocol == control.TCP {
		query = append(binary.BigEndian.AppendUint16(nil, uint16(len(query))), query...) //nolint:gosec // one question
	}
	if _, err := conn.Write(query); err != nil {
		return nil, err
	}
	for {
		answer, err := readQuery(conn, protocol)
		if err != nil {
			return nil, err
		}
		if isAnswerTo(answer, id, q) {
			return answer, nil
		}
	}
}

// isAnswerTo reports whether an answer has the ID and the question of a query, which a forged one has to guess.
func isAnswerTo(answer []byte, id uint16, q dnsmessage.Question) bool {
	var p dnsmessage.Parser
	h, err := p.Start(answer)
	if err != nil || !h.Response || h.ID != id {
		return false
	}
	asked, err := p.Question()
	return err == nil && asked.Type == q.Type && asked.Class == q.Class && strings.EqualFold(asked.Name.String(), q.Name.String())
}

// queryOf returns a query of one question.
func queryOf(id uint16, q dnsmessage.Question) ([]byte, error) {
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: id, RecursionDesired: true})
	b.EnableCompression()
	var extended dnsmessage.ResourceHeader
	if err := errors.Join(b.StartQuestions(), b.Question(q), b.StartAdditionals(),
		extended.SetEDNS0(maxAnswer, dnsmessage.RCodeSuccess, false), b.OPTResource(extended, dnsmessage.OPTResource{})); err != nil {
		return nil, err
	}
	return b.Finish()
}
