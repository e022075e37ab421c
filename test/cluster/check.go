// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"cloudnative.tw/drover/test/cluster/internal/plan"
)

// check reports what this machine lacks for a cluster.
func check(p plan.Plan) error {
	if p.Nodes < 1 || p.Nodes > plan.MaxNodes {
		return fmt.Errorf("a cluster has 1 to %d nodes, not %d", plan.MaxNodes, p.Nodes)
	}
	if os.Geteuid() != 0 {
		return errors.New("a cluster needs root: it makes namespaces, network interfaces and control groups")
	}
	// Nodes have folders of their own there, which would hide the cluster's.
	for _, hidden := range []string{"/run", "/var/run", "/var/lib", "/var/log", "/proc", "/sys"} {
		for _, dir := range []string{p.Dir, os.TempDir()} {
			if path, err := filepath.Abs(dir); dir != "" && err == nil && strings.HasPrefix(path+"/", hidden+"/") {
				return fmt.Errorf("a cluster cannot be in %s: set TMPDIR to a folder that is not below %s", dir, hidden)
			}
			if p.Dir != "" {
				break
			}
		}
	}
	return checkPrograms()
}

func checkPrograms() error {
	var missing []string
	for _, program := range []string{"runc", "nft"} {
		if _, err := exec.LookPath(program); err != nil {
			if _, err := os.Stat(filepath.Join("/usr/sbin", program)); err != nil {
				missing = append(missing, program)
			}
		}
	}
	for _, plugin := range []string{"ptp", "host-local", "portmap"} {
		if _, err := os.Stat(filepath.Join("/usr/lib/cni", plugin)); err != nil {
			missing = append(missing, "CNI plugin "+plugin)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("missing: %s; hack/cluster-deps.sh installs them", strings.Join(missing, ", "))
	}
	return nil
}
