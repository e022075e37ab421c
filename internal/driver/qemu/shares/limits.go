// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package shares

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// CPUOvercommit is how many CPUs of machines there are for each CPU of the host, of which limits are parts. CPUs of machines
// may be more than the host's, since the kernel divides time between those that are busy.
const CPUOvercommit = 10

// Limit is the share of each namespace in a resource: a part of the host's, or an amount. The zero value limits nothing.
type Limit struct {
	text            string // of the flag
	percent, amount int64
}

// Limits are the shares of each namespace.
type Limits [resources]Limit

// ParseLimits parses the values of the flags. An empty value limits nothing.
func ParseLimits(memory, cpus, disk string) (limits Limits, err error) {
	for r, text := range [resources]string{Memory: memory, CPU: cpus, Disk: disk} {
		about := descriptions[r]
		limit, bad := parseLimit(text, about.valueOf)
		if bad != nil {
			err = errors.Join(err, fmt.Errorf("%s is %q: it must be a part of the host from 1%% to 100%%, or an amount such as %s; 0 and 100%% mean no limit", about.flag, text, about.example))
		}
		limits[r] = limit
	}
	return limits, err
}

func parseLimit(text string, valueOf func(*resource.Quantity) int64) (Limit, error) {
	if number, ok := strings.CutSuffix(text, "%"); ok {
		percent, err := strconv.ParseUint(number, 10, 7)
		switch {
		case err != nil, percent > 100:
			return Limit{}, strconv.ErrRange
		case percent%100 == 0:
			return Limit{}, nil
		}
		return Limit{text: text, percent: int64(percent)}, nil
	}
	q, err := resource.ParseQuantity(cmp.Or(text, "0"))
	switch {
	case err != nil:
		return Limit{}, err
	case q.Sign() < 0:
		return Limit{}, strconv.ErrRange
	case q.IsZero():
		return Limit{}, nil
	}
	return Limit{text: text, amount: valueOf(&q)}, nil
}

// shareOf returns the amount of a limit, or zero without a limit. A part of an unknown whole limits nothing.
func (l Limit) shareOf(whole int64) int64 {
	if l.percent == 0 {
		return l.amount
	}
	return whole/100*l.percent + whole%100*l.percent/100 // the product may overflow
}

func (l Limit) String() string { return l.text }
