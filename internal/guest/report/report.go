// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package report defines the types for the network interfaces that a guest reports, and for its network statistics.
//
// Start with Interface and NetworkStatistics. Code that receives a report must check it with IsValid: guests and
// supervisors may be hostile, and people read on a terminal what they report.
package report

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode"
)

// Interface is a network interface of a guest or server.
type Interface struct {
	Name string `json:"name"`
	// MAC is empty where the interface has none.
	MAC string `json:"mac,omitempty"`
	// Addresses are IP addresses with the length of their prefix, as in 10.0.2.15/24.
	Addresses []netip.Prefix `json:"addresses,omitempty"`
}

// MaxName limits the name of an interface, in bytes. Windows has long ones.
const MaxName = 256

// IsValid reports whether an interface can have these values.
func (i Interface) IsValid() bool {
	isUnprintable := func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }
	if i.Name == "" || len(i.Name) > MaxName || strings.ContainsFunc(i.Name, isUnprintable) {
		return false
	}
	if mac, err := net.ParseMAC(i.MAC); i.MAC != "" && (err != nil || mac.String() != i.MAC) {
		return false
	}
	return !slices.ContainsFunc(i.Addresses, func(p netip.Prefix) bool { return !p.IsValid() || p.Addr().Zone() != "" })
}

// NetworkStatistics are the statistics of a network since a time that the engine chooses, such as when the supervisor
// started. In is the direction to the guest.
type NetworkStatistics struct {
	PacketsIn  int64 `json:"packetsIn"`
	BytesIn    int64 `json:"bytesIn"`
	PacketsOut int64 `json:"packetsOut"`
	BytesOut   int64 `json:"bytesOut"`
	// Dropped counts packets that were not relayed, such as broken ones and those with an address that the guest does
	// not have.
	Dropped int64 `json:"dropped"`
	// Connections counts open TCP connections, and Flows open flows of UDP and of pings.
	Connections int64 `json:"connections"`
	Flows       int64 `json:"flows"`
	// Refused counts the connections, packets and names that were refused. LastRefused lists the most recent ones,
	// oldest first.
	Refused     int64     `json:"refused"`
	LastRefused []Refusal `json:"lastRefused,omitempty"`
}

// Refusal is a connection, packet or name that was refused to a guest.
type Refusal struct {
	// Protocol is a word such as tcp, udp or dns, and Target an address, often with a port, or a name.
	Protocol string `json:"protocol"`
	Target   string `json:"target"`
	// Reason is one of the words below, or a word that a later version added.
	Reason string `json:"reason"`
	// Count is how many times it was refused while it was among the last refusals.
	Count int64     `json:"count"`
	Last  time.Time `json:"last"`
}

// Values of Refusal.Reason.
const (
	RefusedDenied    = "Denied"    // the operator has denied the range
	RefusedNoEgress  = "NoEgress"  // the operator allows only other machines
	RefusedSpecial   = "Special"   // it is an address for special use
	RefusedNoRoute   = "NoRoute"   // the host lacks a route to the target, or the target is the host
	RefusedNoMachine = "NoMachine" // the machine does not exist, or the guest may not connect to it
	RefusedTooMany   = "TooMany"   // the machine has too many connections
	RefusedNoAnswer  = "NoAnswer"  // the target did not answer or refused the connection
)

const (
	// MaxRefusals is how many refusals are remembered.
	MaxRefusals = 8
	// MaxTarget limits the target of a refusal, in bytes.
	MaxTarget = 255
	// maxWord limits the protocol and the reason of a refusal, in bytes.
	maxWord = 32
)

// IsValid reports whether the statistics contain only harmless text and no negative numbers.
func (n *NetworkStatistics) IsValid() bool {
	counts := []int64{n.PacketsIn, n.BytesIn, n.PacketsOut, n.BytesOut, n.Dropped, n.Connections, n.Flows, n.Refused}
	return slices.Min(counts) >= 0 && len(n.LastRefused) <= MaxRefusals &&
		!slices.ContainsFunc(n.LastRefused, func(r Refusal) bool { return !r.isValid() })
}

func (r Refusal) isValid() bool {
	isForbidden := func(r rune) bool { return !IsTargetChar(r) }
	return isWord(r.Protocol) && isWord(r.Reason) && len(r.Target) <= MaxTarget &&
		!strings.ContainsFunc(r.Target, isForbidden) && r.Count > 0 && !r.Last.IsZero()
}

// IsTargetChar reports whether r is allowed in the target of a refusal.
func IsTargetChar(r rune) bool {
	return isLetter(r) || r >= '0' && r <= '9' || strings.ContainsRune(".:-_[]?", r)
}

// isWord reports whether a text is a word such as Denied.
func isWord(text string) bool {
	return text != "" && len(text) <= maxWord && !strings.ContainsFunc(text, func(r rune) bool { return !isLetter(r) })
}

func isLetter(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' }
