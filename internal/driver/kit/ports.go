// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"cloudnative.tw/drover/internal/driver"
)

// maxUnpublished is the length of the longest list that the API takes.
const maxUnpublished = 32

// UnpublishedPorts returns the ports that an image declares, such as 80 or 80/tcp, and that are not published. It returns the
// lowest ones, and leaves out a text that is not a port.
func UnpublishedPorts(declared []string, published []driver.Port) []string {
	var ports []driver.Port
	for _, text := range declared {
		number, protocol, _ := strings.Cut(text, "/")
		p := driver.Port{Protocol: strings.ToUpper(cmp.Or(protocol, "tcp"))}
		n, err := strconv.ParseUint(number, 10, 16)
		p.Port = int32(n)
		isOpen := slices.ContainsFunc(published, func(o driver.Port) bool { return o.Port == p.Port && strings.EqualFold(o.Protocol, p.Protocol) })
		if err == nil && n > 0 && slices.Contains([]string{"TCP", "UDP", "SCTP"}, p.Protocol) && !isOpen {
			ports = append(ports, p)
		}
	}
	slices.SortFunc(ports, func(a, b driver.Port) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), strings.Compare(a.Protocol, b.Protocol))
	})
	var texts []string
	for _, p := range slices.Compact(ports) {
		texts = append(texts, fmt.Sprintf("%d/%s", p.Port, strings.ToLower(p.Protocol)))
	}
	return texts[:min(len(texts), maxUnpublished)]
}
