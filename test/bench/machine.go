// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/prometheus/procfs"
)

// describeMachine describes this host and its load average over the last minute.
func describeMachine() string {
	kernel, kernelErr := os.ReadFile("/proc/sys/kernel/osrelease")
	proc, err := procfs.NewDefaultFS()
	cpus, cpuErr := proc.CPUInfo()
	memory, memoryErr := proc.Meminfo()
	load, loadErr := proc.LoadAvg()
	if err := errors.Join(err, kernelErr, cpuErr, memoryErr, loadErr); err != nil || len(cpus) == 0 || memory.MemTotalBytes == nil {
		return fmt.Sprintf("an unknown machine: %v", err)
	}
	return fmt.Sprintf("%d CPUs (%s), %d GiB, Linux %s, %s, load before %.2f", runtime.NumCPU(), cpus[0].ModelName,
		(*memory.MemTotalBytes+1<<29)>>30, strings.TrimSpace(string(kernel)), runtime.Version(), load.Load1)
}
