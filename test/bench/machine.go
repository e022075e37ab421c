// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

// Machine describes where a benchmark ran.
type Machine struct {
	CPUs      int     `json:"cpus"`
	CPU       string  `json:"cpu"`
	MemoryGiB uint64  `json:"memoryGiB"`
	Kernel    string  `json:"kernel"`
	Go        string  `json:"go"`
	Load      float64 `json:"load"` // runnable threads over the last minute, before the benchmark
}

// ThisMachine describes this machine. It omits what cannot be read.
func ThisMachine() Machine {
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	m := Machine{CPUs: runtime.NumCPU(), Kernel: strings.TrimSpace(string(kernel)), Go: runtime.Version()}
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return m
	}
	if all, err := proc.CPUInfo(); err == nil && len(all) > 0 {
		m.CPU = all[0].ModelName
	}
	if load, err := proc.LoadAvg(); err == nil {
		m.Load = load.Load1
	}
	if memory, err := proc.Meminfo(); err == nil && memory.MemTotalBytes != nil {
		m.MemoryGiB = (*memory.MemTotalBytes + 1<<29) >> 30
	}
	return m
}

func (m Machine) String() string {
	return fmt.Sprintf("%d CPUs (%s), %d GiB, Linux %s, %s, load before %.2f", m.CPUs, m.CPU, m.MemoryGiB, m.Kernel, m.Go, m.Load)
}

// Meter measures how much of the machine other programs use.
type Meter struct{ busy, total, own time.Duration }

// NewMeter begins to measure; pids are this process's running children.
func NewMeter(pids []int) (Meter, error) {
	own, err := ownTime(pids)
	if err != nil {
		return Meter{}, err
	}
	busy, total, err := machineTime()
	return Meter{busy: busy, total: total, own: own}, err
}

// Others returns the part of all CPUs that other programs, and other machines on the
// same host, used since begin, in per cent.
func (m Meter) Others(begin Meter) float64 {
	others := (m.busy - begin.busy) - (m.own - begin.own)
	return 100 * float64(max(others, 0)) / float64(max(m.total-begin.total, 1))
}

// ownTime returns the CPU time of this process, its children, and ended children.
func ownTime(pids []int) (time.Duration, error) {
	sum, err := CPUTime(pids...)
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		if err := syscall.Getrusage(who, &u); err != nil {
			return 0, err
		}
		sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return sum, err
}

// machineTime returns that of all CPUs; time stolen from this machine counts as
// busy.
func machineTime() (busy, total time.Duration, err error) {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, 0, err
	}
	stat, err := proc.Stat()
	c := stat.CPUTotal
	busy = seconds(c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ + c.Steal)
	return busy, busy + seconds(c.Idle+c.Iowait), err
}
