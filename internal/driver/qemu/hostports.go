// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine"
)

// hostPorts are the ports of the host that machines may use.
type hostPorts struct {
	text   string
	ranges [][2]int32 // from, to; none means all
	size   uint32     // how many there are
	next   atomic.Uint32
}

// parseHostPorts reads a list of ports and ranges of ports.
func parseHostPorts(text string) (*hostPorts, error) {
	h := &hostPorts{text: text}
	if text == "" {
		return h, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			last = first
		}
		from, err1 := strconv.ParseUint(first, 10, 16)
		to, err2 := strconv.ParseUint(last, 10, 16)
		if err1 != nil || err2 != nil || from < 1 || from > to {
			return nil, fmt.Errorf("--qemu-host-ports is %q: it must be a list of ports and ranges, each from 1 to 65535, such as 80,30000-32767", text)
		}
		h.ranges = append(h.ranges, [2]int32{int32(from), int32(to)})
		h.size += uint32(to-from) + 1
	}
	h.next.Store(rand.Uint32()) //nolint:gosec // so that controllers begin elsewhere; no secret
	return h, nil
}

func (h *hostPorts) contains(port int32) bool {
	for _, r := range h.ranges {
		if port >= r[0] && port <= r[1] {
			return true
		}
	}
	return len(h.ranges) == 0
}

// portAt returns the n-th of the ports, counting around.
func (h *hostPorts) portAt(n uint32) int32 {
	n %= h.size
	for _, r := range h.ranges {
		length := uint32(r[1]-r[0]) + 1 //nolint:gosec // 16 bits
		if n < length {
			return r[0] + int32(n) //nolint:gosec // 16 bits
		}
		n -= length
	}
	return 0
}

// checkPorts refuses host ports that machines may not have.
func (h *hostPorts) checkPorts(ports []driver.Port) error {
	for i, p := range ports {
		if p.HostPort != 0 && !h.contains(p.HostPort) {
			return driver.Errorf(driver.ErrInvalid, "ports[%d].hostPort (%s) is %d: it must be one of %s (--qemu-host-ports), or left out to have one chosen", i, p.Name, p.HostPort, h.text)
		}
	}
	return nil
}

// choosePort is a chooser that tries ports. Each choice continues where the previous one
// ended, so that a machine with several ports is not offered a port that it took already.
func (h *hostPorts) choosePort(ctx context.Context, f machine.Forward) (int32, error) {
	switch {
	case f.HostPort != 0 && !h.contains(f.HostPort):
		return 0, fmt.Errorf("it is none of %s (--qemu-host-ports)", h.text)
	case f.HostPort != 0 || len(h.ranges) == 0:
		return machine.FreePort(ctx, f)
	}
	var err error
	for range h.size {
		f.HostPort = h.portAt(h.next.Add(1))
		if _, err = machine.FreePort(ctx, f); err == nil || ctx.Err() != nil {
			return f.HostPort, err
		}
	}
	return 0, fmt.Errorf("none of %s (--qemu-host-ports) is free: %w", h.text, err)
}
