// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package system

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/guest/report"
)

// Interfaces returns the network interfaces that have addresses of other hosts' networks.
func Interfaces() ([]report.Interface, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var found []report.Interface
	for _, i := range all {
		if i.Flags&net.FlagLoopback != 0 {
			continue
		}
		addresses, err := i.Addrs()
		if err != nil {
			return nil, err
		}
		entry := report.Interface{Name: i.Name, MAC: i.HardwareAddr.String()}
		for _, a := range addresses {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil {
				entry.Addresses = append(entry.Addresses, prefix)
			}
		}
		found = append(found, entry)
	}
	return found, nil
}

// SetTime sets the clock, in nanoseconds since 1970.
func SetTime(nanoseconds int64) error {
	if nanoseconds < 0 {
		return errors.New("the time is before 1970")
	}
	now := unix.NsecToTimespec(nanoseconds)
	return unix.ClockSettime(unix.CLOCK_REALTIME, &now)
}

// Reseed mixes a seed into the kernel's random numbers, which use it at once.
func Reseed(seed []byte) error {
	f, err := os.OpenFile("/dev/urandom", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	// struct rand_pool_info: entropy in bits, length in bytes, then the bytes.
	info := binary.NativeEndian.AppendUint32(nil, uint32(8*len(seed))) //nolint:gosec // at most wire.MaxSeed
	info = binary.NativeEndian.AppendUint32(info, uint32(len(seed)))   //nolint:gosec // at most wire.MaxSeed
	info = append(append(info, seed...), 0, 0, 0, 0)
	if err := ioctl(int(f.Fd()), unix.RNDADDENTROPY, unsafe.Pointer(&info[0])); err != nil { //nolint:gosec // a system call
		return err
	}
	return ioctl(int(f.Fd()), rndReseedCRNG, nil)
}

// rndReseedCRNG is RNDRESEEDCRNG, _IO('R', 7).
const rndReseedCRNG = 0x5207
