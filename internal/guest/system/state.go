// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package system

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/guest/wire"
)

// clockTick is the unit of /proc/stat, USER_HZ, in nanoseconds.
const clockTick = 10_000_000

// ReadUsage returns what the guest uses.
func ReadUsage() (*wire.Usage, error) {
	u := &wire.Usage{}
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return nil, err
	}
	u.CPUNanoseconds, u.CPUs = parseStat(string(stat))
	memory, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return nil, err
	}
	u.MemoryBytes, u.AvailableBytes = parseMemory(string(memory))
	var fs unix.Statfs_t
	if err := unix.Statfs("/", &fs); err != nil {
		return nil, fmt.Errorf("the root's size: %w", err)
	}
	u.DiskBytes, u.FreeBytes = int64(fs.Blocks)*fs.Bsize, int64(fs.Bavail)*fs.Bsize //nolint:gosec // of this kernel
	return u, nil
}

// parseStat returns the time that all CPUs were busy, and how many there are. The first line has
// the times of user, nice, system, idle, iowait, irq, softirq and steal.
func parseStat(text string) (busy int64, cpus int) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		switch {
		case len(fields) < 9 || !strings.HasPrefix(fields[0], "cpu"):
		case fields[0] == "cpu":
			for i, field := range fields[1:9] {
				if ticks, err := strconv.ParseInt(field, 10, 64); err == nil && i != 3 && i != 4 {
					busy += ticks * clockTick
				}
			}
		default:
			cpus++
		}
	}
	return busy, cpus
}

func parseMemory(text string) (total, available int64) {
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch {
		case err != nil:
		case name == "MemTotal":
			total = kib << 10
		case name == "MemAvailable":
			available = kib << 10
		}
	}
	return total, available
}

// Interfaces returns the network interfaces that have addresses of other hosts' networks.
func Interfaces() ([]wire.Interface, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var found []wire.Interface
	for _, i := range all {
		if i.Flags&net.FlagLoopback != 0 {
			continue
		}
		addresses, err := i.Addrs()
		if err != nil {
			return nil, err
		}
		entry := wire.Interface{Name: i.Name, MAC: i.HardwareAddr.String()}
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
