// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"cloudnative.tw/drover/standalone/internal/doctor"
)

const (
	metricsTimeout = 3 * time.Second
	// maxMetrics is more than a controller of 10,000 VMs shows.
	maxMetrics = 16 << 20
)

// alarms are the metrics that are 1 when something is wrong with a driver's engine, and what
// that means.
var alarms = map[string]string{
	"drover_engine_fenced":       "the engine refuses the leader, because a higher epoch has acted on it: nothing is done about its VMs (docs/high-availability.md)",
	"drover_orphan_sweep_frozen": "suspiciously many servers have no VM, and none is removed: drover vm orphans list shows them",
}

// readMetrics adds to the warnings what the controller's metrics show, where they are served
// without authentication.
func (s *Status) readMetrics(ctx context.Context, h *doctor.Host) {
	address := h.Addresses["--metrics-bind-address"]
	host, port, err := net.SplitHostPort(address)
	if s.State != StateReady || err != nil {
		return
	}
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	families, err := fetchMetrics(ctx, "http://"+net.JoinHostPort(host, port)+"/metrics")
	if err != nil {
		return // it is optional, and may want a login
	}
	for name, text := range alarms {
		for _, driver := range driversAt(families[name], 1) {
			s.warn(driver, "%s", text)
		}
	}
	for _, driver := range driversAt(families["drover_engine_up"], 0) {
		s.warn(driver, "the controller does not reach the engine, or does not know all of its servers")
	}
}

func fetchMetrics(ctx context.Context, url string) (map[string]*dto.MetricFamily, error) {
	ctx, cancel := context.WithTimeout(ctx, metricsTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("metrics: %s", response.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(io.LimitReader(response.Body, maxMetrics))
}

// driversAt returns the drivers for which a metric has a value.
func driversAt(family *dto.MetricFamily, value float64) []string {
	var names []string
	for _, m := range family.GetMetric() {
		if m.GetGauge() == nil || m.GetGauge().GetValue() != value {
			continue
		}
		for _, label := range m.GetLabel() {
			if label.GetName() == "driver" {
				names = append(names, label.GetValue())
			}
		}
	}
	return names
}
