// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// lastLines is how many lines of each log Logs returns.
const lastLines = 15

// Logs returns the ends of the logs of all programs.
func (c *Cluster) Logs() string {
	var out strings.Builder
	for _, pattern := range []string{"*.log", "logs/*.log", "nodes/*/*.log"} {
		paths, _ := filepath.Glob(filepath.Join(c.Dir, pattern))
		for _, path := range paths {
			content, err := os.ReadFile(path)
			if err != nil {
				continue
			}
			lines := strings.Split(strings.TrimRight(string(content), "\n"), "\n")
			fmt.Fprintf(&out, "==> %s\n%s\n", path, strings.Join(lines[max(0, len(lines)-lastLines):], "\n"))
		}
	}
	return out.String()
}
